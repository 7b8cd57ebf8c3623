// cuBLAS and cuBLASLt: products count their sizes. Declared without cuBLAS's headers, with the
// arguments that are read; the calling convention leaves the rest alone.
#include "fake_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace fake;

static void count(const char* format, long m, long n, long k, long batch) {
    char name[128];
    snprintf(name, sizeof name, "gemm %s %ldx%ldx%ld b%ld", format, m, n, k, batch);
    count_named_launch(name);
    count_product(m, n, k, batch);
}

// Names of the values of cudaDataType that torch uses.
static const char* format_name(int type) {
    switch (type) {
        case 0: return "fp32";
        case 1: return "fp64";
        case 2: return "fp16";
        case 3: return "int8";
        case 14: return "bf16";
        case 28: return "fp8";
        case 29: return "fp8";
    }
    return "other";
}

extern "C" {

int cublasCreate_v2(void** handle) {
    *handle = calloc(1, 4096);
    return 0;
}
int cublasGetMathMode(void*, int* mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0; }

int cublasGemmEx(void*, int, int, int m, int n, int k, const void*, const void*, int type, ...) {
    count(format_name(type), m, n, k, 1);
    return 0;
}
int cublasSgemm_v2(void*, int, int, int m, int n, int k, ...) {
    count("fp32", m, n, k, 1);
    return 0;
}
int cublasDgemm_v2(void*, int, int, int m, int n, int k, ...) {
    count("fp64", m, n, k, 1);
    return 0;
}
int cublasSgemmEx(void*, int, int, int m, int n, int k, const void*, const void*, int type, ...) {
    count(format_name(type), m, n, k, 1);
    return 0;
}
int cublasGemmStridedBatchedEx(void*, int, int, int m, int n, int k, const void*, const void*,
                               int type, int, long long, const void*, int, int, long long,
                               const void*, void*, int, int, long long, int batch, ...) {
    count(format_name(type), m, n, k, batch);
    return 0;
}
int cublasSgemmStridedBatched(void*, int, int, int m, int n, int k, const void*, const void*, int,
                              long long, const void*, int, long long, const void*, void*, int,
                              long long, int batch) {
    count("fp32", m, n, k, batch);
    return 0;
}
int cublasDgemmStridedBatched(void*, int, int, int m, int n, int k, const void*, const void*, int,
                              long long, const void*, int, long long, const void*, void*, int,
                              long long, int batch) {
    count("fp64", m, n, k, batch);
    return 0;
}

// ---- cuBLASLt: a layout is a matrix of rows and columns, a description says what is transposed

struct Layout {
    int type;
    uint64_t rows, columns;
    int32_t batch;
};
struct Description {
    int32_t transpose_a;
};
enum { BATCH_COUNT = 5, TRANSPOSE_A = 3 };  // of cublasLtMatrixLayoutAttribute_t, ...DescAttributes_t

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t) {
    *layout = new Layout{type, rows, columns, 1};
    return 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
    delete static_cast<Layout*>(layout);
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t) {
    if (attribute == BATCH_COUNT)
        memcpy(&static_cast<Layout*>(layout)->batch, value, sizeof(int32_t));
    return 0;
}
int cublasLtMatmulDescCreate(void** description, ...) {
    *description = new Description{0};
    return 0;
}
int cublasLtMatmulDescDestroy(void* description) {
    delete static_cast<Description*>(description);
    return 0;
}
int cublasLtMatmulDescSetAttribute(void* description, int attribute, const void* value, size_t) {
    if (attribute == TRANSPOSE_A)
        memcpy(&static_cast<Description*>(description)->transpose_a, value, sizeof(int32_t));
    return 0;
}
int cublasLtMatmulPreferenceCreate(void** preference) {
    *preference = calloc(1, 1024);
    return 0;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
    free(preference);
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                   void* result, int* number) {
    memset(result, 0, 96);  // a cublasLtMatmulHeuristicResult_t
    *number = 1;
    return 0;
}
int cublasLtMatmul(void*, void* description, const void*, const void*, void* a, const void*, void*,
                   const void*, const void*, void*, void*, void* d, ...) {
    const auto *left = static_cast<Layout*>(a), *result = static_cast<Layout*>(d);
    const bool transposed = static_cast<Description*>(description)->transpose_a != 0;
    count(format_name(left->type), result->rows, result->columns,
          transposed ? left->rows : left->columns, result->batch);
    return 0;
}

// ---- the rest does nothing

#define SUCCEEDS(name) \
    int name(...) { return 0; }
SUCCEEDS(cublasDestroy_v2)
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2)
SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(cublasSetWorkspace_v2)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)

#define LAUNCHES(name)            \
    int name(...) {               \
        count_named_launch(#name); \
        return 0;                 \
    }
LAUNCHES(cublasSgemv_v2)
LAUNCHES(cublasDgemv_v2)
LAUNCHES(cublasSdot_v2)
LAUNCHES(cublasDdot_v2)
LAUNCHES(cublasDotEx)
LAUNCHES(cublasStrsm_v2)
LAUNCHES(cublasDtrsm_v2)
LAUNCHES(cublasStrsmBatched)
LAUNCHES(cublasDtrsmBatched)
LAUNCHES(cublasSgetrfBatched)
LAUNCHES(cublasSgetrsBatched)

}  // extern "C"
