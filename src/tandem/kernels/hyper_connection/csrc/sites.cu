// Between two sublayers, in two launches: the last output enters the streams while their mixing weights are
// projected (leave_site), and the next sublayer's input is mixed, normalized and rotated (enter_site).
//
// Four streams of D values a row; D a multiple of 128, at most 8192. A site's coefficients lie as 24 floats: pre
// [4], post [4], mix [4 old, 4 new]. Sums run in a fixed order, so a row's bits depend on that row alone.

#include "../../exl3/csrc/exl3.cuh"

#define STREAMS 4
#define MIXES 24
#define PARTIAL 25  // 24 dot products and the sum of squares

// Grid: (D / 128, rows), 256 threads. The sublayer's output is the sum over `choices` pairs of a row, row_pair
// [rows, choices] (null: the row itself) times row_weight (null: 1). choices == 0: the streams begin as the
// embedding of token_ids. -> streams fp32 [rows, 4, D] updated, partial fp32 [rows, D / 128, 25].
extern "C" __global__ void __launch_bounds__(256)
    leave_site(float* __restrict__ streams, const float* __restrict__ coefficients, const int* __restrict__ values,
               const int* __restrict__ sums, const float* __restrict__ scale, const __half* __restrict__ svh,
               const int* __restrict__ pair_matrix, const int* __restrict__ row_pair,
               const float* __restrict__ row_weight, const __half* __restrict__ embedding,
               const i64* __restrict__ token_ids, const float* __restrict__ mixer, float* __restrict__ partial, int D,
               int choices, int splits, int pairs, int pitch) {
    __shared__ __align__(16) float outputs[16][ROTATION];
    __shared__ __align__(16) float slice[STREAMS][ROTATION];
    __shared__ float squares[4];
    const int row = blockIdx.y, base = blockIdx.x * ROTATION, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Partial from = {values, sums, scale, splits, pairs, pitch};
    for (int choice = warp; choice < choices; choice += 8) {
        const int pair = row_pair ? row_pair[row * choices + choice] : row;
        const float weight = row_weight ? row_weight[row * choices + choice] : 1.0f;
        const size_t matrix = pair_matrix ? pair_matrix[pair] : 0;
        float v[4];
        finish_block(v, from, pair, svh + matrix * D, base + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++) outputs[choice][4 * lane + i] = v[i] * weight;
    }
    __syncthreads();
    if (threadIdx.x < ROTATION) {
        const int d = base + threadIdx.x;
        float* at = streams + (size_t)row * STREAMS * D + d;
        float next[STREAMS];
        if (choices == 0) {
            const float value = __half2float(embedding[(size_t)token_ids[row] * D + d]);
#pragma unroll
            for (int s = 0; s < STREAMS; s++) next[s] = value;
        } else {
            float output = outputs[0][threadIdx.x];
            for (int choice = 1; choice < choices; choice++) output += outputs[choice][threadIdx.x];
            const float* c = coefficients + row * MIXES;
            float old[STREAMS];
#pragma unroll
            for (int s = 0; s < STREAMS; s++) old[s] = at[(size_t)s * D];
#pragma unroll
            for (int s = 0; s < STREAMS; s++) {
                next[s] = c[4 + s] * output;
#pragma unroll
                for (int o = 0; o < STREAMS; o++) next[s] += c[8 + 4 * o + s] * old[o];
            }
        }
        float square = 0.0f;
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            at[(size_t)s * D] = next[s];
            slice[s][threadIdx.x] = next[s];
            square = fmaf(next[s], next[s], square);
        }
        square = warp_sum(square);
        if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
    float* out = partial + ((size_t)row * gridDim.x + blockIdx.x) * PARTIAL;
    if (threadIdx.x == 0) out[MIXES] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    if (mixer == nullptr) return;
#pragma unroll
    for (int m = warp; m < MIXES; m += 8) {
        float dot = 0.0f;
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const float4 w = *(const float4*)(mixer + ((size_t)m * STREAMS + s) * D + base + 4 * lane);
            const float4 x = *(const float4*)(&slice[s][4 * lane]);
            dot = fmaf(w.x, x.x, dot);
            dot = fmaf(w.y, x.y, dot);
            dot = fmaf(w.z, x.z, dot);
            dot = fmaf(w.w, x.w, dot);
        }
        dot = warp_sum(dot);
        if (lane == 0) out[m] = dot;
    }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One warp: lane 4 o + s (below 16) holds mix[o][s] before Sinkhorn; divides rows and columns by their sums.
__device__ __forceinline__ float sinkhorn(float raised, int iterations, float eps) {
    const unsigned all = 0xffffffffu;
    const auto row_sum = [&](float v) {
        v += __shfl_xor_sync(all, v, 1);
        return v + __shfl_xor_sync(all, v, 2);
    };
    const auto column_sum = [&](float v) {
        v += __shfl_xor_sync(all, v, 4);
        return v + __shfl_xor_sync(all, v, 8);
    };
    float top = fmaxf(raised, __shfl_xor_sync(all, raised, 1));
    top = fmaxf(top, __shfl_xor_sync(all, top, 2));
    float v = expf(raised - top);
    v = v / row_sum(v) + eps;
    v = v / (column_sum(v) + eps);
    for (int i = 1; i < iterations; i++) {
        v = v / (row_sum(v) + eps);
        v = v / (column_sum(v) + eps);
    }
    return v;
}

// Grid: (rows), 1024 threads. mean != 0: the plain mean of the streams (the end of the stack) instead of a mix.
// -> coefficients [rows, 24], x fp32 [rows, D] normalized (null: not wanted), and for each of `groups` matrices
// rotated fp32 [groups, rows, D] with its peaks. suh fp16 [groups, D].
extern "C" __global__ void __launch_bounds__(1024)
    enter_site(const float* __restrict__ streams, const float* __restrict__ partial, const float* __restrict__ base,
               const float* __restrict__ scale, const float* __restrict__ norm, const __half* __restrict__ suh,
               float* __restrict__ coefficients, float* __restrict__ x, float* __restrict__ rotated,
               float* __restrict__ peaks, int D, int groups, int mean, int iterations, float eps, float norm_eps) {
    extern __shared__ __align__(16) float mixed[];
    __shared__ float projected[PARTIAL], pre[STREAMS], scratch[32];
    const int row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = D / ROTATION;
    if (!mean) {
        // Warp m sums the partial products m of all blocks, 32 at a time in order.
        if (warp < PARTIAL) {
            float total = 0.0f;
            for (int i = lane; i < blocks; i += 32)
                total += partial[((size_t)row * blocks + i) * PARTIAL + warp];
            total = warp_sum(total);
            if (lane == 0) projected[warp] = total;
        }
        __syncthreads();
        const float inverse = rsqrtf(projected[MIXES] / (STREAMS * D) + norm_eps);
        float* out = coefficients + row * MIXES;
        if (warp == 31) {
            const int m = 8 + (lane & 15);
            const float value = sinkhorn(projected[m] * inverse * scale[2] + base[m], iterations, eps);
            if (lane < 16) out[8 + lane] = value;
            if (lane < 4) out[4 + lane] = 2.0f * sigmoid(projected[4 + lane] * inverse * scale[1] + base[4 + lane]);
        }
        if (threadIdx.x < STREAMS)
            pre[threadIdx.x] = sigmoid(projected[threadIdx.x] * inverse * scale[0] + base[threadIdx.x]) + eps;
        __syncthreads();
    }
    const float* from = streams + (size_t)row * STREAMS * D;
    float square = 0.0f;
    for (int d = threadIdx.x * 4; d < D; d += 4096) {
        float4 v[STREAMS];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) v[s] = *(const float4*)(from + (size_t)s * D + d);
        float4 total;
        if (mean) {
            total.x = (v[0].x + v[1].x + v[2].x + v[3].x) * 0.25f;
            total.y = (v[0].y + v[1].y + v[2].y + v[3].y) * 0.25f;
            total.z = (v[0].z + v[1].z + v[2].z + v[3].z) * 0.25f;
            total.w = (v[0].w + v[1].w + v[2].w + v[3].w) * 0.25f;
        } else {
            total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int s = 0; s < STREAMS; s++) {
                total.x += pre[s] * v[s].x;
                total.y += pre[s] * v[s].y;
                total.z += pre[s] * v[s].z;
                total.w += pre[s] * v[s].w;
            }
        }
        *(float4*)(mixed + d) = total;
        square += (total.x * total.x + total.y * total.y) + (total.z * total.z + total.w * total.w);
    }
    const float inverse = rsqrtf(block_sum(square, scratch) / D + norm_eps);
    // What a thread wrote above it reads here: no other barrier is needed.
    for (int d = threadIdx.x * 4; d < D; d += 4096) {
        float4 v = *(const float4*)(mixed + d);
        const float4 w = *(const float4*)(norm + d);
        v = make_float4(v.x * inverse * w.x, v.y * inverse * w.y, v.z * inverse * w.z, v.w * inverse * w.w);
        if (x) *(float4*)(x + (size_t)row * D + d) = v;
        for (int g = 0; g < groups; g++) {
            float r[4] = {v.x, v.y, v.z, v.w};
            const size_t out = (size_t)g * gridDim.x + row;
            store_rotated(r, suh + (size_t)g * D, d, rotated + out * D, peaks + out * blocks);
        }
    }
}
