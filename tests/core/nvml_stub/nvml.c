/* Stands in for the driver's NVML, so that the real binding can be asked without one. What it says comes from the
   environment: STUB_OTHERS processes, to which STUB_JOINED come after the first question and STUB_LEFT were at that one
   alone, STUB_REASONS a bit field, STUB_BUSY per cent, STUB_POOR any value: a card that tells neither power, energy nor clocks. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
static unsigned asked;

static unsigned number(const char *name) { const char *v = getenv(name); return v ? (unsigned)atoi(v) : 0; }
static int poor(void) { return getenv("STUB_POOR") != 0; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(size_t)(index + 1);
  return index < 2 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  *device = (void *)9;
  return strcmp(uuid, "GPU-9") ? NOT_FOUND : SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
  strcpy(name, "Stub GPU 0");
  name[9] = (char)('0' + (int)(size_t)device);
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
  if (memory->version != (sizeof(Memory) | (2u << 24))) return NOT_SUPPORTED;
  memory->total = 8ull << 30;
  memory->reserved = 512ull << 20;
  memory->used = (100ull << 20) + ((unsigned long long)number("STUB_USED_MIB") << 20);
  return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
  rates[0] = number("STUB_BUSY");
  rates[1] = 0;
  return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
  *mhz = type == 1 ? 1980 : 2619;
  return poor() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
  *celsius = 41;
  return sensor == 0 ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  *milliwatts = 250000;
  return poor() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  *millijoules = (unsigned long long)(now() * 250e3);
  return poor() ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  *reasons = number("STUB_REASONS");
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
  if (found == 0)
    asked++;
  unsigned running = number("STUB_OTHERS") + number(asked > 1 ? "STUB_JOINED" : "STUB_LEFT");
  *count = running;
  if (found == 0)
    return running ? INSUFFICIENT_SIZE : SUCCESS;
  memset(found, 0, *count * sizeof(Process));
  return SUCCESS;
}
