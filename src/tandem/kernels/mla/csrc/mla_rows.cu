// Latent attention of few rows, around its products: norms of the low-rank query and the latent with the cache
// write and the index keys (mla_enter), queries into latent space (absorb), parts of the result together (join_parts) and out of it
// (unabsorb).
//
// Macros: ROWS (most rows, 1..16), Q8 (1: the cache holds 8-bit codes).

#include "../../exl3/csrc/exl3.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef Q8
#define Q8 0
#endif

struct Pages {
    const int* tables;  // [runs, max_pages]
    int max_pages, page_tokens;
    __device__ __forceinline__ i64 token(int run, int position) const {
        return (i64)tables[(size_t)run * max_pages + position / page_tokens] * page_tokens + position % page_tokens;
    }
};

// Four latents a lane -> the cache. Groups of 32 values (8 lanes) are rotated and share an fp16 scale.
__device__ __forceinline__ void store_latents(const float (&v)[4], void* cache, __half* scales, i64 token, int L,
                                              int at) {
#if Q8
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    float r[4] = {a + c, b + d, a - c, b - d};
    const int lane = threadIdx.x & 31;
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int step = 1; step < 8; step <<= 1) {
            const float other = __shfl_xor_sync(0xffffffffu, r[i], step);
            r[i] = (lane & step) ? other - r[i] : r[i] + other;
        }
        r[i] *= 0.17677669529663687f;
        largest = fmaxf(largest, fabsf(r[i]));
    }
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const __half scale = __float2half_ru(fminf(largest / 127.0f, 65504.0f));
    const float divisor = __half2float(scale) > 0.0f ? __half2float(scale) : 1.0f;
    u32 packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int code = min(max(__float2int_rn(r[i] / divisor), -127), 127);
        packed |= (u32)(code & 255) << (8 * i);
    }
    *(u32*)((i8*)cache + token * L + at) = packed;
    if ((lane & 7) == 0) scales[token * (L / 32) + at / 32] = scale;
#else
    __half h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = __float2half_rn(fminf(fmaxf(v[i], -65504.0f), 65504.0f));
    *(uint2*)((__half*)cache + token * L + at) = *(const uint2*)h;
#endif
}

// Hadamard-32 over a warp, one value a lane: queries and results meet 8-bit latents in their rotated basis.
__device__ __forceinline__ float rotate32(float v) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, v, step);
        v = (lane & step) ? other - v : v + other;
    }
    return v * 0.17677669529663687f;
}

// Finish one group's row of n outputs, normalize it and leave it in shared memory.
__device__ __forceinline__ void normalized_row(float* row, const Partial& from, int pair, const __half* svh,
                                               const float* weight, int n, float eps, float* scratch) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    float square = 0.0f;
    for (int block = warp; block < n / ROTATION; block += warps) {
        float v[4];
        finish_block(v, from, pair, svh, block * ROTATION + 4 * lane);
        square += (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
        *(float4*)(row + block * ROTATION + 4 * lane) = make_float4(v[0], v[1], v[2], v[3]);
    }
    const float inverse = rsqrtf(block_sum(square, scratch) / n + eps);
    for (int block = warp; block < n / ROTATION; block += warps) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = block * ROTATION + 4 * lane + i;
            row[at] = row[at] * inverse * weight[at];
        }
    }
}

// Grid: (rows, 3), 384 threads. Groups of the product: q_a (Q outputs), kv_a (L outputs).
//   y = 0  query norm -> rotated fp32 [2, rows, Q], peaks: inputs of q_b and of the indexer's wq_b; suh [2, Q]
//   y = 1  latent norm -> cache at the row's position
//   y = 2  (first row of a run) index keys: layer norm, ring of the slot, pools that become complete
// small fp32 [rows, small_pitch]: index key [128], pool gate [128], head weights. ring fp32 [slots, ring_tokens,
// 2, 128], pools fp16 [total pools, 128], pool_bias fp32 [pool_tokens, 128].
extern "C" __global__ void __launch_bounds__(384)
    mla_enter(const int* values, const int* sums, const float* scale,
              const __half* query_svh, const __half* latent_svh,
              const float* query_norm, const float* latent_norm,
              const __half* suh, const float* small, const float* key_norm,
              const float* key_bias, const float* pool_bias,
              const int* positions, const int* run_of_row,
              const int* run_starts, const int* slots, const int* tables,
              void* cache, __half* cache_scales, float* ring, __half* pools,
              float* rotated, float* peaks, int Q, int L, int splits, int pitch,
              int small_pitch, int max_pages, int page_tokens, int ring_tokens, int pool_tokens, float eps) {
    let_next_begin();
    wait_for_earlier();
    extern __shared__ __align__(16) float row_values[];
    __shared__ float scratch[32];
    const int row = blockIdx.x, rows = gridDim.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int run = run_of_row[row];
    const Partial from = {values, sums, scale, splits, 2 * rows, pitch};
    const Pages pages = {tables, max_pages, page_tokens};
    if (blockIdx.y == 0) {
        normalized_row(row_values, from, row, query_svh, query_norm, Q, eps, scratch);
        for (int block = warp; block < Q / ROTATION; block += 12) {
            const int at = block * ROTATION + 4 * lane;
            for (int g = 0; g < 2; g++) {
                float v[4] = {row_values[at], row_values[at + 1], row_values[at + 2], row_values[at + 3]};
                const size_t out = (size_t)g * rows + row;
                store_rotated(v, factors(suh + (size_t)g * Q + at), at, rotated + out * Q, peaks + out * (Q / ROTATION));
            }
        }
    } else if (blockIdx.y == 1) {
        normalized_row(row_values, from, rows + row, latent_svh, latent_norm, L, eps, scratch);
        const i64 token = pages.token(run, positions[row]);
        for (int block = warp; block < L / ROTATION; block += 12) {
            const int at = block * ROTATION + 4 * lane;
            const float v[4] = {row_values[at], row_values[at + 1], row_values[at + 2], row_values[at + 3]};
            store_latents(v, cache, cache_scales, token, L, at);
        }
    } else {
        if (row != run_starts[run]) return;
        const int end = run_starts[run + 1];
        float* of_slot = ring + (size_t)slots[run] * ring_tokens * 256;
        for (int r = row + warp; r < end; r += 12) {
            const float* in = small + (size_t)r * small_pitch;
            float* out = of_slot + (size_t)(positions[r] % ring_tokens) * 256;
            float v[4], sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) sum += v[i] = in[lane + 32 * i];
            const float mean = warp_sum(sum) / 128.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) square += (v[i] - mean) * (v[i] - mean);
            const float inverse = rsqrtf(warp_sum(square) / 128.0f + 1e-6f);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = lane + 32 * i;
                out[d] = (v[i] - mean) * inverse * key_norm[d] + key_bias[d];
                out[128 + d] = in[128 + d];
            }
        }
        __syncthreads();
        for (int item = threadIdx.x; item < (end - row) * 128; item += blockDim.x) {
            const int position = positions[row + item / 128], d = item % 128;
            if ((position + 1) % pool_tokens) continue;
            float top = -__int_as_float(0x7f800000);
            for (int i = 0; i < pool_tokens; i++) {
                const int member = (position + 1 - pool_tokens + i) % ring_tokens;
                top = fmaxf(top, of_slot[member * 256 + 128 + d] + pool_bias[i * 128 + d]);
            }
            float total = 0.0f, weights = 0.0f;
            for (int i = 0; i < pool_tokens; i++) {
                const int member = (position + 1 - pool_tokens + i) % ring_tokens;
                const float w = expf(of_slot[member * 256 + 128 + d] + pool_bias[i * 128 + d] - top);
                total += of_slot[member * 256 + d] * w;
                weights += w;
            }
            const float key = fminf(fmaxf(total / weights, -65504.0f), 65504.0f);
            pools[pages.token(run, position) / pool_tokens * 128 + d] = __float2half_rn(key);
        }
    }
}

#define FOLD_WARPS 8
#define FOLD_AHEAD 16

// 128 columns of a small fp16 matrix for few rows, by eight warps: a warp takes count / 8 consecutive inputs, a lane four
// columns. The first weights are asked for when the object is made, before their rows are there.
struct Fold {
    const __half* weight;  // this lane's columns of the warp's first input
    int pitch, each;
    uint2 ahead[FOLD_AHEAD];

    __device__ __forceinline__ Fold(const __half* matrix, int pitch, int count) : pitch(pitch), each(count / FOLD_WARPS) {
        weight = matrix + (size_t)(threadIdx.x >> 5) * each * pitch + 4 * (threadIdx.x & 31);
#pragma unroll
        for (int i = 0; i < FOLD_AHEAD; i++) ahead[i] = at(i);
    }
    __device__ __forceinline__ uint2 at(int i) const {
        return i < each ? __ldg((const uint2*)(weight + (size_t)i * pitch)) : make_uint2(0, 0);
    }
    // x fp32 [rows, count] in shared memory -> total [rows, 128] there, in an order that does not depend on `rows`. All
    // threads of the block; half the warps' sums wait in `total` [4, ROWS, 128] for the other half.
    __device__ __forceinline__ void multiply(const float* x, int count, int rows, float (*total)[ROWS][ROTATION]) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        float acc[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[r][j] = 0.0f;
        const float* own = x + warp * each;
        for (int first = 0; first < each; first += FOLD_AHEAD) {
#pragma unroll
            for (int i = 0; i < FOLD_AHEAD; i++) {
                const uint2 packed = ahead[i];
                ahead[i] = at(first + i + FOLD_AHEAD);
                const float2 w0 = __half22float2(*(const __half2*)&packed.x),
                             w1 = __half22float2(*(const __half2*)&packed.y);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float v = r < rows && first + i < each ? own[r * count + first + i] : 0.0f;
                    acc[r][0] = fmaf(w0.x, v, acc[r][0]);
                    acc[r][1] = fmaf(w0.y, v, acc[r][1]);
                    acc[r][2] = fmaf(w1.x, v, acc[r][2]);
                    acc[r][3] = fmaf(w1.y, v, acc[r][3]);
                }
            }
        }
        const auto place = [&](int r) { return (float4*)&total[warp & 3][r][4 * lane]; };
        if (warp >= 4) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) *place(r) = make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
        }
        __syncthreads();
        if (warp < 4) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float4 other = *place(r);
                *place(r) = make_float4(acc[r][0] + other.x, acc[r][1] + other.y, acc[r][2] + other.z,
                                        acc[r][3] + other.w);
            }
        }
        __syncthreads();
    }
};

// One value of `total` as Fold leaves it.
__device__ __forceinline__ float folded(const float (*total)[ROWS][ROTATION], int r, int c) {
    return (total[0][r][c] + total[1][r][c]) + (total[2][r][c] + total[3][r][c]);
}

// Grid: (heads + index heads, L / 128), 256 threads. Groups of the product: q_b (heads * N outputs), wq_b.
//   x < heads  q [rows, heads, L] fp32 = scale * (finished query of the head) . K [heads, N, L] fp16; N = 256
//   others     index_q fp32 [rows, index heads, 128] (y = 0 only)
extern "C" __global__ void __launch_bounds__(256)
    absorb(const int* values, const int* sums, const float* scale,
           const __half* query_svh, const __half* index_svh,
           const __half* key_half, float* q, float* index_q, int heads,
           int index_heads, int N, int L, int splits, int pitch, int rows, float softmax_scale) {
    extern __shared__ __align__(16) float query[];  // [rows, N]
    __shared__ __align__(16) float total[4][ROWS][ROTATION];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x;
    let_next_begin();
    const Partial from = {values, sums, scale, splits, 2 * rows, pitch};
    if (head >= heads) {
        if (blockIdx.y) return;
        wait_for_earlier();
        for (int row = warp; row < rows; row += 8) {
            float v[4];
            const int at = (head - heads) * ROTATION + 4 * lane;
            finish_block(v, from, rows + row, index_svh, at);
            *(float4*)(index_q + (size_t)row * index_heads * ROTATION + at) = make_float4(v[0], v[1], v[2], v[3]);
        }
        return;
    }
    Fold fold(key_half + (size_t)head * N * L + blockIdx.y * ROTATION, L, N);
    wait_for_earlier();
    const int blocks = N / ROTATION;
    for (int item = warp; item < rows * blocks; item += 8) {
        const int row = item / blocks, at = (item % blocks) * ROTATION + 4 * lane;
        float v[4];
        finish_block(v, from, row, query_svh, head * N + at);
        *(float4*)(query + row * N + at) =
            make_float4(v[0] * softmax_scale, v[1] * softmax_scale, v[2] * softmax_scale, v[3] * softmax_scale);
    }
    __syncthreads();
    fold.multiply(query, N, rows, total);
    for (int i = threadIdx.x; i < rows * ROTATION; i += 256) {
        const int r = i / ROTATION, c = i % ROTATION;
        const float v = folded(total, r, c);
        q[((size_t)r * heads + head) * L + blockIdx.y * ROTATION + c] = Q8 ? rotate32(v) : v;
    }
}

// Joins the attention's parts. attended fp32 [rows, parts, heads, L] unnormalized, maxima and totals fp32 [rows,
// parts, heads] (a part without tokens has total 0). Grid: (heads, rows), L threads (at most 1024), at most 128
// parts. -> joined fp32 [rows, heads, L].
extern "C" __global__ void join_parts(const float* attended, const float* maxima,
                                      const float* totals, float* joined, int parts) {
    let_next_begin();
    wait_for_earlier();
    __shared__ float factors[128];
    __shared__ float whole;
    const int head = blockIdx.x, row = blockIdx.y, heads = gridDim.x, L = blockDim.x, lane = threadIdx.x & 31;
    const size_t first = (size_t)row * parts * heads + head;
    if (threadIdx.x < 32) {
        float top = -__int_as_float(0x7f800000);
        for (int p = lane; p < parts; p += 32)
            if (totals[first + (size_t)p * heads] > 0.0f) top = fmaxf(top, maxima[first + (size_t)p * heads]);
        top = warp_max(top);
        float total = 0.0f;
        for (int p = lane; p < parts; p += 32) {
            const float own = totals[first + (size_t)p * heads];
            const float factor = own > 0.0f ? expf(maxima[first + (size_t)p * heads] - top) : 0.0f;
            factors[p] = factor;
            total += own * factor;
        }
        total = warp_sum(total);
        if (lane == 0) whole = total;
    }
    __syncthreads();
    float value = 0.0f;
#pragma unroll 8
    for (int p = 0; p < parts; p++) {
        const float factor = factors[p];
        const float v = factor > 0.0f ? attended[(first + (size_t)p * heads) * L + threadIdx.x] : 0.0f;
        value = fmaf(v, factor, value);
    }
    joined[((size_t)row * heads + head) * L + threadIdx.x] = (Q8 ? rotate32(value) : value) / whole;
}

// Results out of latent space: joined fp32 [rows, heads, L], V fp16 [heads, L, N]. Grid: (heads, N / 128), 256
// threads. -> rotated fp32 [rows, heads * N] with peaks; out_suh fp16 [heads * N].
extern "C" __global__ void __launch_bounds__(256)
    unabsorb(const float* joined, const __half* value_half,
             const __half* out_suh, float* rotated, float* peaks, int N, int L,
             int rows) {
    extern __shared__ __align__(16) float latent[];  // [rows, L]
    __shared__ __align__(16) float total[4][ROWS][ROTATION];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x, heads = gridDim.x;
    let_next_begin();
    Fold fold(value_half + (size_t)head * L * N + blockIdx.y * ROTATION, N, L);
    const int at = head * N + blockIdx.y * ROTATION + 4 * lane;
    const float4 suh = factors(out_suh + at);
    wait_for_earlier();
    for (int i = threadIdx.x; i < rows * L; i += 256)
        latent[i] = joined[((size_t)(i / L) * heads + head) * L + i % L];
    __syncthreads();
    fold.multiply(latent, L, rows, total);
    for (int row = warp; row < rows; row += 8) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = folded(total, row, 4 * lane + i);
        store_rotated(v, suh, at, rotated + (size_t)row * heads * N,
                      peaks + (size_t)row * (heads * N / ROTATION));
    }
}
