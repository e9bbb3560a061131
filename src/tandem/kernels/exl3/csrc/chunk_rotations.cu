// Rotations around the EXL3 products of a prefill chunk: fp16 in and out, fp32 between. Before a product four lanes
// hold 128 values, so that two of the seven additions of a rotation pass between lanes, and loads are 16 bytes wide.
//
// A product's input lies in rows, or (swizzled) as routed_chunk.cu wants it. Pairs of row -1 are holes: nothing of them
// is read or written.

#include "exl3.cuh"

#define LANE 32  // values of a lane: pieces lane, lane + 4, .. of eight values each

__device__ __forceinline__ void unpack(float* v, const uint4& packed) {
    const __half2* halves = (const __half2*)&packed;
#pragma unroll
    for (int i = 0; i < 4; i++) *(float2*)(v + 2 * i) = __half22float2(halves[i]);
}

__device__ __forceinline__ uint4 pack(const float* v) {
    uint4 packed;
    __half2* halves = (__half2*)&packed;
#pragma unroll
    for (int i = 0; i < 4; i++) halves[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    return packed;
}

// A lane's four pieces of a block of 128 values; nothing for a block past the end.
__device__ __forceinline__ void load(uint4 (&pieces)[4], const __half* block, bool live) {
#pragma unroll
    for (int p = 0; p < 4; p++) pieces[p] = live ? *(const uint4*)(block + 32 * p) : make_uint4(0, 0, 0, 0);
}

// The Sylvester-Hadamard transform of 128 values held by four lanes, without the norm.
__device__ __forceinline__ void hadamard128_of_four(float (&v)[LANE]) {
#pragma unroll
    for (int bit = 1; bit < LANE; bit <<= 1) {
#pragma unroll
        for (int i = 0; i < LANE; i++) {
            if (i & bit) continue;
            const float a = v[i], b = v[i | bit];
            v[i] = a + b;
            v[i | bit] = a - b;
        }
    }
#pragma unroll
    for (int step = 1; step < 4; step <<= 1) {
        const float sign = threadIdx.x & step ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < LANE; i++) v[i] = fmaf(sign, v[i], __shfl_xor_sync(0xffffffffu, v[i], step));
    }
}

// v times signs, rotated, to its place: a pair's values at .. of a product's input of `inputs` values.
__device__ __forceinline__ void store(const float (&v)[LANE], const uint4 (&signs)[4], __half* rotated, int swizzled,
                                      size_t group, size_t pairs, int pair, int inputs, int at, bool live) {
    float turned[LANE];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        float sign[8];
        unpack(sign, signs[p]);
#pragma unroll
        for (int i = 0; i < 8; i++) turned[8 * p + i] = v[8 * p + i] * sign[i];
    }
    hadamard128_of_four(turned);
    if (!live) return;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const int own = at + 32 * p;
        const size_t line = (group * (inputs / 64) + own / 64) * pairs + pair;
        const size_t to = swizzled ? line * 64 + ((own / 8 ^ pair) & 7) * 8 : (group * pairs + pair) * inputs + own;
        *(uint4*)(rotated + to) = pack(turned + 8 * p);
    }
}

// x fp16 [rows, inputs] -> rotated fp16 [groups, pairs, inputs]. suh fp16 [groups, matrices, inputs]; pair_row and
// pair_matrix int32 [pairs], null: pair = row, matrix 0. Grid: (pairs), whole warps. groups: 1 or 2.
extern "C" __global__ void rotate_chunk(const __half* x, const __half* suh, const int* pair_row,
                                        const int* pair_matrix, __half* rotated, int inputs, int matrices, int groups,
                                        int swizzled) {
    wait_for_earlier();
    const int pair = blockIdx.x, row = pair_row ? pair_row[pair] : pair, matrix = pair_matrix ? pair_matrix[pair] : 0;
    if (row < 0) return;
    const int own = (threadIdx.x >> 2 & 7) * ROTATION + 8 * (threadIdx.x & 3);
    for (int base = threadIdx.x / 32 * 1024; base < inputs; base += blockDim.x / 32 * 1024) {
        const int at = base + own;
        const bool live = at < inputs;
        uint4 pieces[4], signs[2][4];
        load(pieces, x + (size_t)row * inputs + at, live);
#pragma unroll
        for (int g = 0; g < 2; g++)
            load(signs[g], suh + ((size_t)g * matrices + matrix) * inputs + at, live && g < groups);
        float v[LANE];
#pragma unroll
        for (int p = 0; p < 4; p++) unpack(v + 8 * p, pieces[p]);
#pragma unroll
        for (int i = 0; i < LANE; i++) v[i] *= ROTATION_NORM;
#pragma unroll
        for (int g = 0; g < 2; g++)
            if (g < groups) store(v, signs[g], rotated, swizzled, g, gridDim.x, pair, inputs, at, live);
    }
}

// gate, up fp16 [pairs, width] -> silu(min(gate, limit)) * clamp(up, ±limit) times suh, rotated, fp16 [pairs, width].
// Grid: (pairs), whole warps.
extern "C" __global__ void gate_up_chunk(const __half* gate, const __half* up, const __half* suh,
                                         const int* pair_row, const int* pair_matrix, __half* rotated, int width,
                                         float limit, int swizzled) {
    wait_for_earlier();
    const int pair = blockIdx.x, matrix = pair_matrix ? pair_matrix[pair] : 0;
    if (pair_row && pair_row[pair] < 0) return;
    const int own = (threadIdx.x >> 2 & 7) * ROTATION + 8 * (threadIdx.x & 3);
    for (int base = threadIdx.x / 32 * 1024; base < width; base += blockDim.x / 32 * 1024) {
        const int at = base + own;
        const bool live = at < width;
        uint4 gates[4], ups[4], signs[4];
        load(gates, gate + (size_t)pair * width + at, live);
        load(ups, up + (size_t)pair * width + at, live);
        load(signs, suh + (size_t)matrix * width + at, live);
        float v[LANE];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            float other[8];
            unpack(v + 8 * p, gates[p]);
            unpack(other, ups[p]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float a = fminf(v[8 * p + i], limit), b = fminf(fmaxf(other[i], -limit), limit);
                v[8 * p + i] = __fdividef(a, 1.0f + __expf(-a)) * b * ROTATION_NORM;
            }
        }
        store(v, signs, rotated, swizzled, 0, gridDim.x, pair, width, at, live);
    }
}

// y fp16 [rows, outputs], a library's product with a decoded matrix -> rotated back and scaled, fp16 or fp32 (wide).
// Grid: (rows, ceil(outputs / 2048)), 128 threads.
extern "C" __global__ void finish_chunk(const __half* y, const __half* svh, void* out, int outputs, int wide) {
    wait_for_earlier();
    const int at = blockIdx.y * 2048 + (threadIdx.x >> 3) * ROTATION + 4 * (threadIdx.x & 7);
    const size_t from = (size_t)blockIdx.x * outputs + at;
    const bool live = at < outputs;
    float v[16] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (!live) continue;
        const uint2 packed = *(const uint2*)(y + from + 32 * j);
        *(float2*)(v + 4 * j) = __half22float2(*(const __half2*)&packed.x);
        *(float2*)(v + 4 * j + 2) = __half22float2(*(const __half2*)&packed.y);
    }
    hadamard128_of_eight(v);
    if (!live) return;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint2 packed = *(const uint2*)(svh + at + 32 * j);
        const float2 low = __half22float2(*(const __half2*)&packed.x), high = __half22float2(*(const __half2*)&packed.y);
        const float4 done = make_float4(v[4 * j] * ROTATION_NORM * low.x, v[4 * j + 1] * ROTATION_NORM * low.y,
                                        v[4 * j + 2] * ROTATION_NORM * high.x, v[4 * j + 3] * ROTATION_NORM * high.y);
        if (wide) {
            *(float4*)((float*)out + from + 32 * j) = done;
        } else {
            const __half2 halves[2] = {__floats2half2_rn(done.x, done.y), __floats2half2_rn(done.z, done.w)};
            *(uint2*)((__half*)out + from + 32 * j) = *(const uint2*)halves;
        }
    }
}
