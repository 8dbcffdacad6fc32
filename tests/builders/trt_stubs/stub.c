/* The nine symbols that TensorRT's Python bindings want of its three libraries. Each makes nothing: no engine can be
   built or run over them, and every class, signature and enumeration of the bindings is the real one. */
void *createInferBuilder_INTERNAL(void *logger, int version) { return 0; }
void *createInferRefitter_INTERNAL(void *engine, void *logger, int version) { return 0; }
void *createInferRuntime_INTERNAL(void *logger, int version) { return 0; }
void *createNvOnnxParser_INTERNAL(void *network, void *logger, int version) { return 0; }
void *createNvOnnxParserRefitter_INTERNAL(void *refitter, void *logger, int version) { return 0; }
void *getBuilderPluginRegistry(int capability) { return 0; }
void *getPluginRegistry(void) { return 0; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void *logger, const char *space) { return 1; }
