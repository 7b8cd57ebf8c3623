// CUDA's runtime: devices, streams, events and kernel launches.
#include "fake_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

using namespace fake;

extern "C" {

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    current_device() = device;
    return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    *properties = {};
    strncpy(properties->name, device_name(), sizeof properties->name - 1);
    properties->totalGlobalMem = memory_size();
    properties->major = attribute(75);
    properties->minor = attribute(76);
    properties->multiProcessorCount = attribute(16);
    properties->warpSize = attribute(10);
    properties->maxThreadsPerBlock = attribute(1);
    properties->maxThreadsPerMultiProcessor = attribute(39);
    properties->maxBlocksPerMultiProcessor = attribute(106);
    properties->sharedMemPerBlock = attribute(8);
    properties->sharedMemPerBlockOptin = attribute(97);
    properties->sharedMemPerMultiprocessor = attribute(81);
    properties->regsPerBlock = attribute(12);
    properties->regsPerMultiprocessor = attribute(82);
    for (int axis = 0; axis < 3; axis++) {
        properties->maxThreadsDim[axis] = attribute(2 + axis);
        properties->maxGridSize[axis] = attribute(5 + axis);
    }
    properties->l2CacheSize = attribute(38);
    properties->memoryBusWidth = attribute(37);
    properties->totalConstMem = 65536;
    properties->textureAlignment = 512;
    properties->concurrentKernels = properties->unifiedAddressing = 1;
    properties->pciBusID = device;
    properties->uuid.bytes[0] = char(device + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr code, int) {
    *value = attribute(code);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    snprintf(text, length, "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int, int) {
    *possible = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    count_wait("cudaDeviceSynchronize");
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = DRIVER_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = DRIVER_VERSION;
    return cudaSuccess;
}

// ---- errors

const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "error of the fake GPU";
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

// ---- streams: all work is done when it is asked for

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    touch_device();
    *stream = cudaStream_t(new_handle());
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    count_wait("cudaStreamSynchronize");
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
    function(data);
    return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = cudaEvent_t(new_handle());
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1.0f;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) {
    count_wait("cudaEventSynchronize");
    return cudaSuccess;
}

// ---- kernels: registered with their names by the libraries that hold them

void** __cudaRegisterFatBinary(void*) {
    static void* binary[8];
    return binary;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
    name_function(function, name);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = *block = dim3(1, 1, 1);
    *shared = 0;
    *static_cast<void**>(stream) = nullptr;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = cudaKernel_t(function);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
    count_launch(function);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
    count_launch(kernel);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
    count_launch(function);
    return cudaSuccess;
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t,
                                        cudaStream_t) {
    count_launch(function);
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = attribute(1);
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
    *clusters = 66;
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char symbol[1 << 16];
    *address = symbol;
    return cudaSuccess;
}

// ---- functions of the driver by name; one that is not in driver.cpp succeeds and does nothing

static int do_nothing(...) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
    static const bool verbose = getenv("FAKE_GPU_VERBOSE") != nullptr;
    void* known = dlsym(RTLD_DEFAULT, name);
    if (!known && verbose) fprintf(stderr, "fake GPU: %s does nothing\n", name);
    *function = known ? known : reinterpret_cast<void*>(do_nothing);
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
    return cudaGetDriverEntryPointByVersion(name, function, DRIVER_VERSION, flags, result);
}

}  // extern "C"
