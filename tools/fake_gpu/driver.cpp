// CUDA's driver: contexts, and the modules that Triton compiles and launches. Memory is in memory.cpp.
#include "fake_gpu.h"

#include <cstring>
#include <cuda.h>

using namespace fake;

static const CUcontext CONTEXT = CUcontext(0x77);

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "error of the fake GPU";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** text) {
    *text = "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

// ---- devices and contexts

CUresult cuDeviceGetCount(int* count) {
    *count = device_count();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int index) {
    *device = index;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute code, CUdevice) {
    *value = attribute(code);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* text, int length, CUdevice) {
    strncpy(text, device_name(), length);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = CONTEXT;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current_device();
    return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* value, CUlimit) {
    *value = 1024;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = CONTEXT;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    *flags = 0;
    *active = device == current_device();
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream, CUcontext* context) {
    *context = CONTEXT;
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
    count_wait("cuStreamSynchronize");
    return CUDA_SUCCESS;
}

// ---- modules and their functions

CUresult cuModuleLoadData(CUmodule* module, const void*) {
    *module = CUmodule(new_handle());
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule* module, const char* path) { return cuModuleLoadData(module, path); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    *function = CUfunction(new_handle());
    name_function(*function, std::string("triton:") + name);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetModule(CUmodule* module, CUfunction) {
    *module = CUmodule(1);
    return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute code, CUfunction) {
    *value = code == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 64
             : code == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? attribute(1)
                                                               : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    *clusters = 66;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    *blocks = 2;
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*,
                                const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    *map = {};
    return CUDA_SUCCESS;
}

// ---- launches

CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, CUstream, void**, void**) {
    count_launch(function);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction function, void**, void**) {
    count_launch(function);
    return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, unsigned, CUstream, void**) {
    count_launch(function);
    return CUDA_SUCCESS;
}

}  // extern "C"
