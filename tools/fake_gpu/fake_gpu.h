// The parts shared by the stubs of CUDA's runtime, driver, cuBLAS, NCCL and NVML.
//
// Device memory is host memory that the kernel backs at first touch; a kernel launch does nothing
// but count. So bytes, launches, waits, number formats and the choice of kernels are real, values
// and times are not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace fake {

constexpr size_t MIB = size_t(1) << 20;
constexpr int DRIVER_VERSION = 13000;

// ---- settings, read from the environment once

int device_count();          // FAKE_GPU_COUNT, default 1
size_t memory_size();        // FAKE_GPU_GIB of each device, default 79.1
const char* device_name();   // FAKE_GPU_NAME
int attribute(int code);     // of an H100: cudaDeviceAttr and CUdevice_attribute share their codes

// ---- the calling thread

int& current_device();
void touch_device();  // count a call that would create a context on the current device

// ---- counters, reported and reset by fake_gpu_report

void count_launch(const void* function);
void count_named_launch(const std::string& name);
void name_function(const void* function, const std::string& name);
void count_wait(const char* call);
void count_copy(size_t bytes, bool within_device);
void count_product(double m, double n, double k, double batch);
void count_collective(const std::string& kind, double bytes_sent);

// ---- memory

uintptr_t new_handle();
void* reserve_pages(size_t bytes);
void* allocate(size_t bytes);  // of a device; null when the device is full
void release(void* pointer);
bool take(size_t bytes);       // count physical memory of a device; false when it is full
void give_back(size_t bytes);
void add_device_range(void* pointer, size_t bytes);
void remove_device_range(void* pointer);
size_t memory_used();
void copy(void* to, const void* from, size_t bytes);  // up to 1 MiB; larger values are not needed

}  // namespace fake
