// Shared by the EXL3 kernels: rotations, 16-bit activations in two bytes, and the codebook's affine.
//
// A MUL1 weight is (s - 510) * k + r with s the sum of the four bytes of window * 0x83DCD12D. The tensor core
// adds those bytes itself: the product of a row with the matrix is an integer, exact and associative, so
// neither split-K nor the number of rows nor their neighbours can change a bit of it.

#include <cuda_fp16.h>

#include "../../csrc/overlap.cuh"

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

// The same of 128 values held by eight neighbouring lanes, sixteen a lane, but without the norm. Any of an element's
// index bits may be the register's, the other three are the lane's.
__device__ __forceinline__ void hadamard128_of_eight(float (&v)[16]) {
#pragma unroll
    for (int bit = 1; bit < 16; bit <<= 1) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (i & bit) continue;
            const float a = v[i], b = v[i | bit];
            v[i] = a + b;
            v[i | bit] = a - b;
        }
    }
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) {
        const float sign = threadIdx.x & step ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = fmaf(sign, v[i], __shfl_xor_sync(0xffffffffu, v[i], step));
    }
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

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Sum over a block of whole warps, always in the same order; every thread gets it. scratch: 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_sum((threadIdx.x & 31) < (blockDim.x >> 5) ? scratch[threadIdx.x & 31] : 0.0f);
}

// Four factors of a rotation, suh or svh; 8-byte aligned.
__device__ __forceinline__ float4 factors(const uint2& packed) {
    const float2 a = __half22float2(*(const __half2*)&packed.x), b = __half22float2(*(const __half2*)&packed.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ float4 factors(const __half* from) { return factors(*(const uint2*)from); }

// Rotates 128 values of a row held by one warp and stores them with their largest magnitude: a product's input.
// suh: the lane's factors, which come from far away: to be asked for early.
__device__ __forceinline__ void store_rotated(float (&v)[4], const float4& suh, int at, float* row, float* peaks) {
    v[0] *= suh.x; v[1] *= suh.y; v[2] *= suh.z; v[3] *= suh.w;
    hadamard128(v);
    *(float4*)(row + at) = make_float4(v[0], v[1], v[2], v[3]);
    const float peak = warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    if ((threadIdx.x & 31) == 0) peaks[at / ROTATION] = peak;
}

// One rotated output from its integer sums: scale * (k * (256 high + low - 510 sum) + rest * sum).
__device__ __forceinline__ float dequantize(int high, int low, float scale, int sum) {
    const i64 centred = (i64)high * 256 + low - (i64)MUL1_CENTRE * sum;
    return scale * (MUL1_SCALE * (float)centred + MUL1_REST * (float)sum);
}

// What a product leaves behind: sums of its splits, to be rotated back by whoever needs them. A product of decoded
// weights (decoded_rows.cu) leaves fp32 instead of integers and no `sums`; it is added up in the order of the splits.
struct Partial {
    const int* values;   // [splits, pairs, 2, pitch], or fp32 [splits, pairs, pitch]
    const int* sums;     // [splits, pairs], or null
    const float* scale;  // [pairs]
    int splits, pairs, pitch;
};

__device__ __forceinline__ void integer_sums(float (&v)[4], const Partial& p, int pair, int at) {
    int4 high = make_int4(0, 0, 0, 0), low = high;
    int sum = 0;
    for (int s = 0; s < p.splits; s++) {
        const size_t index = (size_t)s * p.pairs + pair;
        const int* row = p.values + index * 2 * p.pitch + at;
        const int4 h = *(const int4*)row, l = *(const int4*)(row + p.pitch);
        sum += p.sums[index];
        high.x += h.x; high.y += h.y; high.z += h.z; high.w += h.w;
        low.x += l.x; low.y += l.y; low.z += l.z; low.w += l.w;
    }
    const float scale = p.scale[pair];
    v[0] = dequantize(high.x, low.x, scale, sum);
    v[1] = dequantize(high.y, low.y, scale, sum);
    v[2] = dequantize(high.z, low.z, scale, sum);
    v[3] = dequantize(high.w, low.w, scale, sum);
}

__device__ __forceinline__ void decoded_sums(float (&v)[4], const Partial& p, int pair, int at) {
    const float* row = (const float*)p.values + (size_t)pair * p.pitch + at;
    float4 total = *(const float4*)row;
    for (int s = 1; s < p.splits; s++) {
        const float4 own = *(const float4*)(row + (size_t)s * p.pairs * p.pitch);
        total.x += own.x; total.y += own.y; total.z += own.z; total.w += own.w;
    }
    const float scale = p.scale[pair];
    v[0] = total.x * scale; v[1] = total.y * scale; v[2] = total.z * scale; v[3] = total.w * scale;
}

// 128 outputs of one pair, four a lane, rotated back and scaled by svh [outputs].
__device__ __forceinline__ void finish_block(float (&v)[4], const Partial& p, int pair, const __half* svh, int at) {
    const float4 scale = factors(svh + at);
    if (p.sums) integer_sums(v, p, pair, at);
    else decoded_sums(v, p, pair, at);
    hadamard128(v);
    v[0] *= scale.x; v[1] *= scale.y; v[2] *= scale.z; v[3] *= scale.w;
}
