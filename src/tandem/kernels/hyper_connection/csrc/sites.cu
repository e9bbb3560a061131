// Between two sublayers, in two launches: the last output enters the streams while their mixing weights are
// projected (leave_site), and the next sublayer's input is mixed, normalized and rotated (enter_site).
//
// Four streams of D values a row; D a multiple of 128, at most 8192. A site's coefficients lie as 24 floats: pre
// [4], post [4], mix [4 old, 4 new]. Sums run in a fixed order, so a row's bits depend on that row alone.

#include "../../exl3/csrc/exl3.cuh"
#include "coefficients.cuh"

#define LEAVE_WARPS 12
#define MOST_GROUPS 3  // matrices that rotate one input

// Grid: (D / 128, rows), 384 threads. The sublayer's output is the sum over `choices` pairs of a row, row_pair
// [rows, choices] (null: the row itself) times row_weight (null: 1); pair_matrix (null: matrix 0) or, without the
// detour, row_matrix [rows, choices] says whose svh. choices == 0: the streams begin as the
// embedding of token_ids or, without one, stay as they came. -> streams fp32 [rows, 4, D] updated, partial fp32 [rows, D / 128, 25].
extern "C" __global__ void __launch_bounds__(LEAVE_WARPS * 32)
    leave_site(float* streams, const float* coefficients, const int* values,
               const int* sums, const float* scale, const __half* svh,
               const int* pair_matrix, const int* row_pair, const int* row_matrix,
               const float* row_weight, const __half* embedding,
               const i64* token_ids, const float* mixer, float* partial, int D,
               int choices, int splits, int pairs, int pitch) {
    __shared__ __align__(16) float outputs[16][ROTATION];
    __shared__ __align__(16) float slice[STREAMS][ROTATION];
    __shared__ float squares[4];
    const int row = blockIdx.y, base = blockIdx.x * ROTATION, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    let_next_begin();
    float4 weights[MIXES / LEAVE_WARPS][STREAMS];
    if (mixer) {
#pragma unroll
        for (int m = 0; m < MIXES / LEAVE_WARPS; m++)
#pragma unroll
            for (int s = 0; s < STREAMS; s++)
                weights[m][s] =
                    __ldg((const float4*)(mixer + ((size_t)(LEAVE_WARPS * m + warp) * STREAMS + s) * D + base + 4 * lane));
    }
    wait_for_earlier();
    const Partial from = {values, sums, scale, splits, pairs, pitch};
    float old[STREAMS], c[MIXES];
    if (threadIdx.x < ROTATION && choices) {
#pragma unroll
        for (int i = 0; i < MIXES; i += 4) *(float4*)(c + i) = *(const float4*)(coefficients + row * MIXES + i);
#pragma unroll
        for (int s = 0; s < STREAMS; s++) old[s] = streams[((size_t)row * STREAMS + s) * D + base + threadIdx.x];
    }
    for (int choice = warp; choice < choices; choice += LEAVE_WARPS) {
        const int pair = row_pair ? row_pair[row * choices + choice] : row;
        const float weight = row_weight ? row_weight[row * choices + choice] : 1.0f;
        const size_t matrix = row_matrix ? row_matrix[row * choices + choice] : pair_matrix ? pair_matrix[pair] : 0;
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
            const float value = embedding ? __half2float(embedding[(size_t)token_ids[row] * D + d]) : 0.0f;
#pragma unroll
            for (int s = 0; s < STREAMS; s++) next[s] = embedding ? value : at[(size_t)s * D];
        } else {
            float output = outputs[0][threadIdx.x];
            for (int choice = 1; choice < choices; choice++) output += outputs[choice][threadIdx.x];
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
    for (int m = 0; m < MIXES / LEAVE_WARPS; m++) {
        float dot = 0.0f;
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const float4 w = weights[m][s];
            const float4 x = *(const float4*)(&slice[s][4 * lane]);
            dot = fmaf(w.x, x.x, dot);
            dot = fmaf(w.y, x.y, dot);
            dot = fmaf(w.z, x.z, dot);
            dot = fmaf(w.w, x.w, dot);
        }
        dot = warp_sum(dot);
        if (lane == 0) out[LEAVE_WARPS * m + warp] = dot;
    }
}

// Grid: (rows), 1024 threads. mean != 0: the plain mean of the streams (the end of the stack) instead of a mix. The
// coefficients that leave_site will need take longer: a block of the launch after this one makes them
// (coefficients.cuh).
// -> x fp32 [rows, D] normalized (null: not wanted), and for each of `groups` matrices rotated fp32 [groups, rows, D]
// with its peaks. suh fp16 [groups, D].
extern "C" __global__ void __launch_bounds__(1024)
    enter_site(const float* streams, const float* partial, const float* base,
               const float* scale, const float* norm, const __half* suh,
               float* x, float* rotated, float* peaks, int D, int groups, int mean, float eps, float norm_eps) {
    extern __shared__ __align__(16) float mixed[];
    __shared__ float projected[PARTIAL], pre[STREAMS], scratch[32];
    const int row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, blocks = D / ROTATION;
    let_next_begin();
    const float* from = streams + (size_t)row * STREAMS * D;
    const int own = threadIdx.x * 4;  // the first columns of this thread, asked for at once
    float4 own_norm;
    uint2 own_suh[MOST_GROUPS];
    if (own < D) {
        own_norm = *(const float4*)(norm + own);
#pragma unroll
        for (int g = 0; g < MOST_GROUPS; g++)
            if (g < groups) own_suh[g] = *(const uint2*)(suh + (size_t)g * D + own);
    }
    wait_for_earlier();
    float4 ahead[STREAMS];
#pragma unroll
    for (int s = 0; s < STREAMS; s++)
        if (own < D) ahead[s] = *(const float4*)(from + (size_t)s * D + own);
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
        if (threadIdx.x < STREAMS)
            pre[threadIdx.x] = sigmoid(projected[threadIdx.x] * inverse * scale[0] + base[threadIdx.x]) + eps;
        __syncthreads();
    }
    float square = 0.0f;
    for (int d = own; d < D; d += 4096) {
        float4 v[STREAMS];
#pragma unroll
        for (int s = 0; s < STREAMS; s++) v[s] = d == own ? ahead[s] : *(const float4*)(from + (size_t)s * D + d);
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
        if (d != own) own_norm = *(const float4*)(norm + d);
        const float4& w = own_norm;
        v = make_float4(v.x * inverse * w.x, v.y * inverse * w.y, v.z * inverse * w.z, v.w * inverse * w.w);
        if (x) *(float4*)(x + (size_t)row * D + d) = v;
#pragma unroll
        for (int g = 0; g < MOST_GROUPS; g++) {
            if (g < groups) {
                float r[4] = {v.x, v.y, v.z, v.w};
                const size_t out = (size_t)g * gridDim.x + row;
                if (d != own) own_suh[g] = *(const uint2*)(suh + (size_t)g * D + d);
                store_rotated(r, factors(own_suh[g]), d, rotated + out * D, peaks + out * blocks);
            }
        }
    }
}

// The same for a prefill chunk, where the projection is a matrix product of its own between the two.
//
// Output rows lie in y fp16 [pairs, D]. Grid: (rows), 256 threads. choices == 0 as for leave_site.
// -> streams updated, squares fp32 [rows]: the sum of squares of a row's streams.
extern "C" __global__ void __launch_bounds__(256)
    leave_chunk(float* streams, const float* coefficients, const __half* y, const int* row_pair,
                const float* row_weight, const __half* embedding, const i64* token_ids, float* squares, int D,
                int choices) {
    __shared__ float scratch[32];
    wait_for_earlier();
    const int row = blockIdx.x;
    const float* c = coefficients + row * MIXES;
    float square = 0.0f;
    for (int d = threadIdx.x * 4; d < D; d += 1024) {
        float* at = streams + (size_t)row * STREAMS * D + d;
        float old[STREAMS][4], output[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (embedding == nullptr) {
#pragma unroll
            for (int s = 0; s < STREAMS; s++) *(float4*)old[s] = *(const float4*)(at + (size_t)s * D);
        }
        for (int choice = 0; choice < choices; choice++) {
            const int pair = row_pair ? row_pair[row * choices + choice] : row;
            const float weight = row_weight ? row_weight[row * choices + choice] : 1.0f;
            const uint2 packed = *(const uint2*)(y + (size_t)pair * D + d);
            const float2 first = __half22float2(*(const __half2*)&packed.x);
            const float2 second = __half22float2(*(const __half2*)&packed.y);
            output[0] = fmaf(weight, first.x, output[0]);
            output[1] = fmaf(weight, first.y, output[1]);
            output[2] = fmaf(weight, second.x, output[2]);
            output[3] = fmaf(weight, second.y, output[3]);
        }
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            float next[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (embedding) {
                    next[i] = __half2float(embedding[(size_t)token_ids[row] * D + d + i]);
                } else if (choices == 0) {
                    next[i] = old[s][i];
                } else {
                    next[i] = c[4 + s] * output[i];
#pragma unroll
                    for (int o = 0; o < STREAMS; o++) next[i] += c[8 + 4 * o + s] * old[o][i];
                }
                square = fmaf(next[i], next[i], square);
            }
            *(float4*)(at + (size_t)s * D) = *(const float4*)next;
        }
    }
    square = block_sum(square, scratch);
    if (threadIdx.x == 0) squares[row] = square;
}

// projected fp32 [rows, 24]: the streams times the mixer. Grid: (rows), 256 threads; mean as for enter_site.
// -> coefficients, x fp16 [rows, D], rotated fp16 [groups, rows, D].
extern "C" __global__ void __launch_bounds__(256)
    enter_chunk(const float* streams, const float* projected, const float* squares, const float* base,
                const float* scale, const float* norm, const __half* suh, float* coefficients, __half* x,
                __half* rotated, int D, int groups, int mean, int iterations, float eps, float norm_eps) {
    extern __shared__ __align__(16) float mixed[];
    __shared__ float pre[STREAMS], scratch[32];
    wait_for_earlier();
    const int row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (!mean) {
        const float inverse = rsqrtf(squares[row] / (STREAMS * D) + norm_eps);
        const float* from = projected + row * MIXES;
        float* out = coefficients + row * MIXES;
        if (warp == 7) {
            const int m = 8 + (lane & 15);
            const float value = sinkhorn(from[m] * inverse * scale[2] + base[m], iterations, eps);
            if (lane < 16) out[8 + lane] = value;
            if (lane < 4) out[4 + lane] = 2.0f * sigmoid(from[4 + lane] * inverse * scale[1] + base[4 + lane]);
        }
        if (threadIdx.x < STREAMS)
            pre[threadIdx.x] = sigmoid(from[threadIdx.x] * inverse * scale[0] + base[threadIdx.x]) + eps;
    } else if (threadIdx.x < STREAMS) {
        pre[threadIdx.x] = 0.25f;
    }
    __syncthreads();
    float square = 0.0f;
    for (int d = threadIdx.x * 4; d < D; d += 1024) {
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
            const float4 v = *(const float4*)(streams + ((size_t)row * STREAMS + s) * D + d);
            total.x += pre[s] * v.x;
            total.y += pre[s] * v.y;
            total.z += pre[s] * v.z;
            total.w += pre[s] * v.w;
        }
        *(float4*)(mixed + d) = total;
        square += (total.x * total.x + total.y * total.y) + (total.z * total.z + total.w * total.w);
    }
    const float inverse = rsqrtf(block_sum(square, scratch) / D + norm_eps);
    for (int d = threadIdx.x * 4; d < D; d += 1024) {
        const float4 v = *(const float4*)(mixed + d), w = *(const float4*)(norm + d);
        const float own[4] = {v.x * inverse * w.x, v.y * inverse * w.y, v.z * inverse * w.z, v.w * inverse * w.w};
        __half2* out = (__half2*)(x + (size_t)row * D + d);
        out[0] = __floats2half2_rn(own[0], own[1]);
        out[1] = __floats2half2_rn(own[2], own[3]);
        for (int g = 0; g < groups; g++) {
            float r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) r[i] = own[i] * __half2float(suh[(size_t)g * D + d + i]);
            hadamard128(r);
            __half2* to = (__half2*)(rotated + ((size_t)g * gridDim.x + row) * D + d);
            to[0] = __floats2half2_rn(r[0], r[1]);
            to[1] = __floats2half2_rn(r[2], r[3]);
        }
    }
}

// The coefficients where no other launch takes them along. Grid: 1, 512 threads.
extern "C" __global__ void __launch_bounds__(512)
    site_coefficients(const float* partial, const float* base, const float* scale, float* coefficients, int rows,
                      int blocks, int iterations, float eps, float norm_eps) {
    let_next_begin();
    wait_for_earlier();
    make_coefficients({partial, base, scale, coefficients, rows, blocks, iterations, eps, norm_eps});
}
