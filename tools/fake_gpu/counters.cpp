// Counters of everything a program asks of its GPUs, and the settings of the fake ones.
#include "fake_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <execinfo.h>
#include <unordered_map>

namespace fake {
namespace {

struct Counts {
    long launches = 0, products = 0, copies = 0;
    double product_flops = 0, copied_within_device = 0;
    std::map<std::string, long> kernels, waits;
    std::map<std::string, std::pair<long, double>> collectives;
    std::map<int, long> calls_on_device;
};

std::mutex mutex;
Counts counts;
std::unordered_map<const void*, std::string>& function_names() {
    static std::unordered_map<const void*, std::string> names;  // before static constructors
    return names;
}

const char* setting(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value ? value : otherwise;
}

void print_stack(const char* call) {
    static const bool wanted = getenv("FAKE_GPU_TRACE_WAITS") != nullptr;
    if (!wanted) return;
    void* frames[24];
    fprintf(stderr, "fake GPU: wait in %s\n", call);
    backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
}

template <typename Map, typename Print>
void print_object(FILE* file, const char* name, const Map& map, Print print) {
    fprintf(file, ", \"%s\": {", name);
    const char* separator = "";
    for (const auto& [key, value] : map) {
        fprintf(file, "%s", separator);
        print(key, value);
        separator = ", ";
    }
    fprintf(file, "}");
}

}  // namespace

int device_count() {
    static const int count = atoi(setting("FAKE_GPU_COUNT", "1"));
    return count;
}

size_t memory_size() {
    static const size_t bytes = size_t(atof(setting("FAKE_GPU_GIB", "79.1")) * 1024) * MIB;
    return bytes;
}

const char* device_name() { return setting("FAKE_GPU_NAME", "NVIDIA H100 80GB HBM3"); }

int attribute(int code) {
    static const std::map<int, int> values = {
        {1, 1024},      {2, 1024},     {3, 1024},     {4, 64},      // threads of a block: all, x, y, z
        {5, 2147483647}, {6, 65535},   {7, 65535},                  // blocks of a grid: x, y, z
        {8, 49152},     {97, 232448},  {81, 233472},                // shared memory: block, opt-in, SM
        {10, 32},       {12, 65536},   {82, 65536},                 // warp; registers: block, SM
        {13, 1980000},  {36, 2619000}, {37, 5120},    {38, 52428800},  // clocks, bus, L2
        {16, 132},      {39, 2048},    {106, 32},                   // SMs; threads, blocks of an SM
        {75, 9},        {76, 0},                                    // compute capability 9.0
        {128, 0},       {132, 0},                                   // no handles for other processes
    };
    const auto entry = values.find(code);
    return entry == values.end() ? 1 : entry->second;
}

int& current_device() {
    static thread_local int device = 0;
    return device;
}

void touch_device() {
    std::lock_guard<std::mutex> guard(mutex);
    counts.calls_on_device[current_device()]++;
}

void name_function(const void* function, const std::string& name) {
    std::lock_guard<std::mutex> guard(mutex);
    function_names()[function] = name;
}

void count_launch(const void* function) {
    std::lock_guard<std::mutex> guard(mutex);
    const auto entry = function_names().find(function);
    counts.kernels[entry == function_names().end() ? "unknown" : entry->second]++;
    counts.calls_on_device[current_device()]++;
    counts.launches++;
}

void count_named_launch(const std::string& name) {
    std::lock_guard<std::mutex> guard(mutex);
    counts.kernels[name]++;
    counts.calls_on_device[current_device()]++;
    counts.launches++;
}

void count_wait(const char* call) {
    print_stack(call);
    std::lock_guard<std::mutex> guard(mutex);
    counts.waits[call]++;
    counts.calls_on_device[current_device()]++;
}

void count_copy(size_t bytes, bool within_device) {
    std::lock_guard<std::mutex> guard(mutex);
    counts.copies++;
    counts.calls_on_device[current_device()]++;
    if (within_device) counts.copied_within_device += double(bytes);
}

void count_product(double m, double n, double k, double batch) {
    std::lock_guard<std::mutex> guard(mutex);
    counts.products++;
    counts.product_flops += 2 * m * n * k * batch;
}

void count_collective(const std::string& kind, double bytes_sent) {
    std::lock_guard<std::mutex> guard(mutex);
    auto& [calls, bytes] = counts.collectives[kind];
    calls++;
    bytes += bytes_sent;
}

}  // namespace fake

// Write all counters as JSON, and start anew.
extern "C" int fake_gpu_report(const char* path) {
    using namespace fake;
    std::lock_guard<std::mutex> guard(mutex);
    FILE* file = fopen(path, "w");
    if (!file) return 1;
    fprintf(file, "{\"launches\": %ld, \"products\": %ld, \"copies\": %ld", counts.launches,
            counts.products, counts.copies);
    fprintf(file, ", \"product_flops\": %.17g, \"copied_within_device\": %.17g",
            counts.product_flops, counts.copied_within_device);
    const auto print_count = [file](const std::string& name, long count) {
        fprintf(file, "\"%s\": %ld", name.c_str(), count);
    };
    print_object(file, "kernels", counts.kernels, print_count);
    print_object(file, "waits", counts.waits, print_count);
    print_object(file, "calls_on_device", counts.calls_on_device,
                 [file](int device, long count) { fprintf(file, "\"%d\": %ld", device, count); });
    print_object(file, "collectives", counts.collectives, [file](const auto& kind, const auto& sent) {
        fprintf(file, "\"%s\": [%ld, %.17g]", kind.c_str(), sent.first, sent.second);
    });
    fprintf(file, "}\n");
    fclose(file);
    counts = Counts();
    return 0;
}
