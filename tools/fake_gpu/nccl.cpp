// NCCL: this rank's collectives count their bytes; what others would send is what this rank sent.
#include "fake_gpu.h"

#include <cstring>

using namespace fake;

struct Communicator {
    int size, rank;
};

// Bytes of a value by ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, fp16, fp32, fp64,
// bf16, fp8 (twice).
static size_t bytes_of(int type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 1;
}

// Of `total` bytes a rank of a ring sends all parts but one.
static double in_ring(double total, const void* communicator) {
    const int size = static_cast<const Communicator*>(communicator)->size;
    return total * (size - 1) / size;
}

// Count a collective; a group of one rank sends nothing, and is no traffic.
static void count_sent(const char* kind, double bytes, const void* communicator) {
    const bool alone = static_cast<const Communicator*>(communicator)->size == 1;
    count_collective(alone ? "alone" : kind, bytes);
}

// Messages between ncclGroupStart and ncclGroupEnd: many are an all-to-all.
static thread_local int group_depth = 0;
static thread_local long group_sends = 0;
static thread_local double group_bytes = 0;
static thread_local std::map<int, std::pair<const void*, size_t>> group_messages;

static void end_messages() {
    if (group_sends) count_collective(group_sends > 1 ? "all-to-all" : "send", group_bytes);
    group_sends = 0;
    group_bytes = 0;
    group_messages.clear();
}

extern "C" {

int ncclCommInitRank(void** communicator, int size, const char*, int rank) {
    *communicator = new Communicator{size, rank};
    return 0;
}

struct UniqueId {
    char bytes[128];
};

int ncclGetUniqueId(UniqueId* id) {
    memset(id, 1, sizeof *id);
    return 0;
}
int ncclCommInitRankConfig(void** communicator, int size, UniqueId, int rank, void*) {
    count_collective("communicator", 0);
    *communicator = new Communicator{size, rank};
    return 0;
}
int ncclCommCount(const void* communicator, int* count) {
    *count = static_cast<const Communicator*>(communicator)->size;
    return 0;
}
int ncclCommUserRank(const void* communicator, int* rank) {
    *rank = static_cast<const Communicator*>(communicator)->rank;
    return 0;
}
int ncclCommGetAsyncError(void*, int* error) { return *error = 0; }
int ncclGetVersion(int* version) {
    *version = 22809;
    return 0;
}
const char* ncclGetErrorString(int) { return "error of the fake NCCL"; }
const char* ncclGetLastError(void*) { return ""; }
int ncclRedOpCreatePreMulSum(int* operation, ...) {
    *operation = 5;
    return 0;
}
int ncclMemAlloc(void** pointer, size_t bytes) {
    *pointer = allocate(bytes);
    return *pointer ? 0 : 1;
}
int ncclMemFree(void* pointer) {
    release(pointer);
    return 0;
}

int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator, void*) {
    const size_t bytes = count * bytes_of(type);
    const int size = static_cast<Communicator*>(communicator)->size;
    count_sent("all-gather", in_ring(double(bytes) * size, communicator), communicator);
    for (int rank = 0; rank < size; rank++) copy(static_cast<char*>(to) + rank * bytes, from, bytes);
    return 0;
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int, void* communicator,
                      void*) {
    const size_t bytes = count * bytes_of(type);
    const int size = static_cast<Communicator*>(communicator)->size;
    count_sent("reduce-scatter", in_ring(double(bytes) * size, communicator), communicator);
    copy(to, from, bytes);
    return 0;
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int, void* communicator,
                  void*) {
    const size_t bytes = count * bytes_of(type);
    count_sent("all-reduce", 2 * in_ring(double(bytes), communicator), communicator);
    copy(to, from, bytes);
    return 0;
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int, void*, void*) {
    const size_t bytes = count * bytes_of(type);
    count_collective("broadcast", double(bytes));
    copy(to, from, bytes);
    return 0;
}
int ncclBcast(void*, size_t count, int type, int, void*, void*) {
    count_collective("broadcast", double(count * bytes_of(type)));
    return 0;
}
int ncclReduce(const void* from, void* to, size_t count, int type, int, int, void*, void*) {
    const size_t bytes = count * bytes_of(type);
    count_collective("reduce", double(bytes));
    copy(to, from, bytes);
    return 0;
}
int ncclAlltoAll(const void* from, void* to, size_t count, int type, void* communicator, void*) {
    const size_t bytes = count * bytes_of(type) * static_cast<Communicator*>(communicator)->size;
    count_collective("all-to-all", in_ring(double(bytes), communicator));
    copy(to, from, bytes);
    return 0;
}

int ncclSend(const void* from, size_t count, int type, int peer, void* communicator, void*) {
    const size_t bytes = count * bytes_of(type);
    group_sends++;
    if (peer != static_cast<Communicator*>(communicator)->rank) group_bytes += double(bytes);
    group_messages[peer] = {from, bytes};
    if (!group_depth) end_messages();
    return 0;
}
int ncclRecv(void* to, size_t count, int type, int peer, void*, void*) {
    const size_t bytes = count * bytes_of(type);
    const auto message = group_messages.find(peer);
    if (message != group_messages.end() && message->second.second == bytes)
        copy(to, message->second.first, bytes);
    return 0;
}
int ncclGroupStart() {
    group_depth++;
    return 0;
}
int ncclGroupEnd() {
    if (!--group_depth) end_messages();
    return 0;
}

// A communicator made from another has a size that is not said here: forge makes none.
int ncclCommSplit(...) { return 5; }
int ncclCommInitRankScalable(...) { return 5; }

#define SUCCEEDS(name) \
    int name(...) { return 0; }
SUCCEEDS(ncclCommAbort)
SUCCEEDS(ncclCommDestroy)
SUCCEEDS(ncclCommFinalize)
SUCCEEDS(ncclCommRegister)
SUCCEEDS(ncclCommDeregister)
SUCCEEDS(ncclCommWindowRegister)
SUCCEEDS(ncclCommWindowDeregister)
SUCCEEDS(ncclRedOpDestroy)

}  // extern "C"
