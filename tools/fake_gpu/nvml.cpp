// NVML, by which forge counts the GPUs of a machine without importing torch.
#include "fake_gpu.h"

using namespace fake;

struct Memory {
    unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = unsigned(device_count());
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = reinterpret_cast<void*>(uintptr_t(index) + 1);
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
    return nvmlDeviceGetHandleByIndex_v2(unsigned(current_device()), device);
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
    *memory = {memory_size(), memory_size() - memory_used(), memory_used()};
    return 0;
}
// torch lists processes in its message of memory that ran out: none are known here.
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { return int(*count = 0); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = DRIVER_VERSION;
    return 0;
}

// No links between devices are known.
enum { NOT_SUPPORTED = 3 };
int nvmlDeviceGetNvLinkRemoteDeviceType(...) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(...) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(...) { return NOT_SUPPORTED; }

}  // extern "C"
