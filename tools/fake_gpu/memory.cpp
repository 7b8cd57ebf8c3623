// Memory of devices, pinned memory of the host, and copies between both.
#include "fake_gpu.h"

#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

namespace fake {
namespace {

constexpr size_t PAGE = 2 * MIB;
constexpr size_t CONTEXT = 500 * MIB;  // not usable by programs, as on a real device
constexpr size_t LARGEST_COPY = MIB;

using Ranges = std::map<uintptr_t, size_t>;
std::mutex mutex;
std::atomic<size_t> used{0};

Ranges& device_ranges() {
    static Ranges ranges;
    return ranges;
}

Ranges& pinned_ranges() {
    static Ranges ranges;
    return ranges;
}

bool contains(const Ranges& ranges, const void* pointer) {
    auto next = ranges.upper_bound(uintptr_t(pointer));
    if (next == ranges.begin()) return false;
    --next;
    return uintptr_t(pointer) < next->first + next->second;
}

void unmap_range(Ranges& ranges, void* pointer) {
    const auto entry = ranges.find(uintptr_t(pointer));
    if (entry == ranges.end()) return;
    munmap(pointer, entry->second);
    ranges.erase(entry);
}

}  // namespace

uintptr_t new_handle() {
    static std::atomic<uintptr_t> last{0x1000};
    return last += 16;
}

void* reserve_pages(size_t bytes) {
    void* start = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    return reinterpret_cast<void*>((uintptr_t(start) + PAGE - 1) & ~(uintptr_t(PAGE) - 1));
}

bool take(size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    if (used + bytes + CONTEXT > memory_size()) return false;
    used += bytes;
    return true;
}

void give_back(size_t bytes) { used -= bytes; }

size_t memory_used() { return used; }

void add_device_range(void* pointer, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    device_ranges()[uintptr_t(pointer)] = bytes;
}

void remove_device_range(void* pointer) {
    std::lock_guard<std::mutex> guard(mutex);
    unmap_range(device_ranges(), pointer);
}

void* allocate(size_t bytes) {
    touch_device();
    if (!take(bytes)) return nullptr;
    void* pointer = reserve_pages(bytes);
    if (pointer) add_device_range(pointer, bytes);
    return pointer;
}

void release(void* pointer) {
    std::lock_guard<std::mutex> guard(mutex);
    const auto entry = device_ranges().find(uintptr_t(pointer));
    if (entry == device_ranges().end()) return;
    used -= entry->second;
    unmap_range(device_ranges(), pointer);
}

void copy(void* to, const void* from, size_t bytes) {
    if (to != from && bytes <= LARGEST_COPY) memmove(to, from, bytes);
}

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    *pointer = allocate(bytes);
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
    return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
    release(pointer);
    return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *total = memory_size();
    *available = memory_size() - memory_used() - CONTEXT;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    touch_device();
    *pointer = reserve_pages(bytes);
    std::lock_guard<std::mutex> guard(fake::mutex);
    if (*pointer) pinned_ranges()[uintptr_t(*pointer)] = bytes;
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* pointer) {
    std::lock_guard<std::mutex> guard(fake::mutex);
    unmap_range(pinned_ranges(), pointer);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
    touch_device();
    std::lock_guard<std::mutex> guard(fake::mutex);
    pinned_ranges()[uintptr_t(pointer)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
    touch_device();
    std::lock_guard<std::mutex> guard(fake::mutex);
    const bool known = pinned_ranges().erase(uintptr_t(pointer)) > 0;
    return known ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    *attributes = {};
    attributes->device = current_device();
    std::lock_guard<std::mutex> guard(fake::mutex);
    const bool on_device = contains(device_ranges(), pointer);
    if (on_device || contains(pinned_ranges(), pointer)) {
        attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
        attributes->devicePointer = const_cast<void*>(pointer);
        attributes->hostPointer = on_device ? nullptr : const_cast<void*>(pointer);
    } else {
        attributes->type = cudaMemoryTypeUnregistered;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    count_wait("cudaMemcpy");
    count_copy(bytes, kind == cudaMemcpyDeviceToDevice);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    count_copy(bytes, kind == cudaMemcpyDeviceToDevice);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t) {
    count_copy(bytes, false);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    count_wait("cudaMemset");
    if (bytes <= LARGEST_COPY) memset(to, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    count_named_launch("memset");
    if (bytes <= LARGEST_COPY) memset(to, value, bytes);
    return cudaSuccess;
}

// ---- virtual memory: addresses are reserved, physical memory is counted apart

static std::map<CUmemGenericAllocationHandle, size_t> physical;

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
    *bytes = PAGE;
    return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
    touch_device();
    if (!take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> guard(fake::mutex);
    *handle = new_handle();
    physical[*handle] = bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> guard(fake::mutex);
    used -= physical[handle];
    physical.erase(handle);
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
    void* pointer = reserve_pages(bytes);
    if (!pointer) return CUDA_ERROR_OUT_OF_MEMORY;
    add_device_range(pointer, bytes);
    *address = CUdeviceptr(pointer);
    return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t) {
    remove_device_range(reinterpret_cast<void*>(address));
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTNEED);
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    *address = CUdeviceptr(allocate(bytes));
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    release(reinterpret_cast<void*>(address));
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    count_wait("cuMemcpyDtoH");
    copy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *static_cast<CUdeviceptr*>(value) = address;
    else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        *static_cast<CUcontext*>(value) = CUcontext(0x77);
    else
        *static_cast<int*>(value) = current_device();
    return CUDA_SUCCESS;
}

}  // extern "C"
