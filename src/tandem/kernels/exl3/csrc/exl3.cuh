// Shared by the EXL3 kernels: rotations, 16-bit activations in two bytes, and the codebook's affine.
//
// A MUL1 weight is (s - 510) * k + r with s the sum of the four bytes of window * 0x83DCD12D. The tensor core
// adds those bytes itself: the product of a row with the matrix is an integer, exact and associative, so
// neither split-K nor the number of rows nor their neighbours can change a bit of it.

#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned short u16;
typedef signed char i8;
typedef long long i64;

// The codebook's own fp16 pair: value = SCALE * (1024 + s) + BIAS, 0x1EEE and 0xC931.
#define MUL1_SCALE 0.006767272949219f
#define MUL1_CENTRE 510
#define MUL1_REST (MUL1_SCALE * (1024 + MUL1_CENTRE) - 10.3828125f)
#define ROTATION 128
#define ROTATION_NORM 0.08838834764831845f  // 1 / sqrt(128)

// Largest 16-bit magnitude whose high byte, rounded to nearest, still is a signed byte.
#define ACTIVATION_MAX 32512.0f

// Sylvester-Hadamard of 128 values held by one warp, four consecutive ones a lane; same order of additions
// for every row. Value i of lane l is element 4 l + i.
__device__ __forceinline__ void hadamard128(float (&v)[4]) {
    const int lane = threadIdx.x & 31;
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c; v[1] = b + d; v[2] = a - c; v[3] = b - d;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = __shfl_xor_sync(0xffffffffu, v[i], step);
            v[i] = (lane & step) ? other - v[i] : v[i] + other;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= ROTATION_NORM;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

__device__ __forceinline__ int warp_sum(int x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Maximum and integer sum over a block of whole warps (at most 32); every thread gets the result.
__device__ __forceinline__ float block_max(float x, float* scratch) {
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    float y = (threadIdx.x & 31) < (blockDim.x >> 5) ? scratch[threadIdx.x & 31] : 0.0f;
    return warp_max(y);
}

__device__ __forceinline__ int block_sum(int x, int* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    int y = (threadIdx.x & 31) < (blockDim.x >> 5) ? scratch[threadIdx.x & 31] : 0;
    return warp_sum(y);
}

// Rotated values of one row in `row` (shared, fp32 [inputs]) -> two bytes a value, their scale and their sum.
__device__ __forceinline__ void quantize_row(const float* row, int inputs, i8* high, i8* low, float* scale,
                                             int* sum, float* scratch) {
    float largest = 0.0f;
    for (int i = threadIdx.x; i < inputs; i += blockDim.x) largest = fmaxf(largest, fabsf(row[i]));
    largest = block_max(largest, scratch);
    const float inverse = largest > 0.0f ? ACTIVATION_MAX / largest : 0.0f;
    int total = 0;
    for (int i = threadIdx.x; i < inputs; i += blockDim.x) {
        const int a = __float2int_rn(row[i] * inverse);
        const int top = (a + 128) >> 8;
        high[i] = (i8)top;
        low[i] = (i8)(a - (top << 8));
        total += a;
    }
    total = block_sum(total, (int*)scratch);
    if (threadIdx.x == 0) {
        *scale = largest / ACTIVATION_MAX;
        *sum = total;
    }
}

// One rotated output from its integer sums: scale * (k * (256 high + low - 510 sum) + rest * sum).
__device__ __forceinline__ float dequantize(int high, int low, float scale, int sum) {
    const i64 centred = (i64)high * 256 + low - (i64)MUL1_CENTRE * sum;
    return scale * (MUL1_SCALE * (float)centred + MUL1_REST * (float)sum);
}
