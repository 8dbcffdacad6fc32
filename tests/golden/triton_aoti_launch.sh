#!/usr/bin/env bash
# Serves aoti@cpu with Triton 26.05; `accel verify` checks this folder.
#   ./launch.sh             tritonserver on PATH, or TRITONSERVER=/path/to/it
#   ./launch.sh --docker    nvcr.io/nvidia/tritonserver:26.05-py3, or IMAGE=another
# Further arguments go to the server. In Kubernetes: kubernetes.yaml. Variables and their defaults:
#   ADDRESS=127.0.0.1       this machine only; 0.0.0.0 serves the network
#   HTTP_PORT=8000 GRPC_PORT=8001 METRICS_PORT=8002
#   MODEL_CONTROL_MODE=none poll, or explicit, which also loads every model at the start
#   MODEL_CONFIG_NAME=      configs/<name>.pbtxt in place of config.pbtxt; here: amd-epyc-2cpu
#   EXIT_TIMEOUT_S=30       how long requests under way may take after SIGTERM
#   CPU_CORES=              cores of host policy cpu: 0-3,6
#   NUMA_NODE=              NUMA node of host policy cpu: 0
#   OMP_NUM_THREADS=2       CPU threads of the model
set -euo pipefail
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
export PYTHONDONTWRITEBYTECODE=1
export ORT_DISABLE_TELEMETRY="${ORT_DISABLE_TELEMETRY:-1}"
missing() { echo "launch.sh: there is no $1; $2" >&2; exit 127; }
if [[ "${1:-}" == --docker ]]; then
  shift
  command -v "${DOCKER:-docker}" >/dev/null || missing docker "install it, or start tritonserver itself"
  docker=(run --rm --init --network host --shm-size 1g -v "$here:/models:ro")
  if [[ -n "${NUMA_NODE:-}" ]]; then docker+=(--cap-add SYS_NICE); fi
  for name in ADDRESS HTTP_PORT GRPC_PORT METRICS_PORT MODEL_CONTROL_MODE MODEL_CONFIG_NAME EXIT_TIMEOUT_S CPU_CORES NUMA_NODE OMP_NUM_THREADS; do docker+=(-e "$name"); done
  exec "${DOCKER:-docker}" "${docker[@]}" "${IMAGE:-nvcr.io/nvidia/tritonserver:26.05-py3}" bash /models/launch.sh "$@"
fi
address="${ADDRESS:-127.0.0.1}"
flags=(--model-control-mode="${MODEL_CONTROL_MODE:-none}")
if [[ "${MODEL_CONTROL_MODE:-none}" == explicit ]]; then flags+=("--load-model=*"); fi
if [[ -n "${MODEL_CONFIG_NAME:-}" ]]; then
  named=("$here"/*/configs/"$MODEL_CONFIG_NAME".pbtxt)
  if [[ ! -e "${named[0]}" ]]; then
    echo "there is no configs/$MODEL_CONFIG_NAME.pbtxt below $here" >&2
    exit 2
  fi
  flags+=("--model-config-name=$MODEL_CONFIG_NAME")
fi
ranges() { tr , '\n' <<<"$1" | sed -E 's/^[0-9]+$/&-&/' | paste -sd,; }
if [[ -n "${CPU_CORES:-}" ]]; then flags+=("--host-policy=cpu,cpu-cores=$(ranges "$CPU_CORES")"); fi
if [[ -n "${NUMA_NODE:-}" ]]; then flags+=("--host-policy=cpu,numa-node=$NUMA_NODE"); fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"  # as it was measured: threads that spin starve each other on busy cores
command -v "${TRITONSERVER:-tritonserver}" >/dev/null || missing tritonserver "set TRITONSERVER=/path/to/it, or use --docker (nvcr.io/nvidia/tritonserver:26.05-py3), or accel serve"
exec "${TRITONSERVER:-tritonserver}" \
  --model-repository="$here" \
  --disable-auto-complete-config \
  --http-address="$address" --http-port="${HTTP_PORT:-8000}" \
  --grpc-address="$address" --grpc-port="${GRPC_PORT:-8001}" \
  --metrics-address="$address" --metrics-port="${METRICS_PORT:-8002}" \
  --exit-timeout-secs="${EXIT_TIMEOUT_S:-30}" \
  "${flags[@]}" "$@"
