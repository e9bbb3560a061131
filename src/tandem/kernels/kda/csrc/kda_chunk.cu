// Kimi delta attention over a prefill chunk: convolution and gates for all rows at once, then the recurrence row
// after row with a head's state in registers, then the gated norm and the rotation for the output product.
//
// The recurrence is that of the step, not its blocked form: columns of the state do not know of each other, so a
// warp holds four of them, needs no barrier, and a row costs it about seventy instructions.

#include "../../exl3/csrc/exl3.cuh"

#define HEAD 128
#define TAPS 4
#define TILE_ROWS 16
#define COLUMNS 64  // of a block; two blocks a head

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// qkv fp32 [rows, 3 H 128], forget fp32 [rows, H 128], mixing fp32 [rows, mixing_pitch] from column 0. Rows at and
// after `length` are padding: they neither decay nor write. Grid: (rows, H), 128 threads.
// -> q, k (unit length), v, decay (exp of the log decay) fp32 [rows, H, 128], rates fp32 [rows, H, 2]: the mixing
// rate and q . k.
extern "C" __global__ void kda_prepare(const float* qkv, const float* forget, const float* mixing,
                                       const float* history, const float* conv, const float* dt_bias,
                                       const float* a_log, float* q, float* k, float* v, float* decay, float* rates,
                                       int mixing_pitch, int length, float lower_bound) {
    wait_for_earlier();
    __shared__ float scratch[32];
    const int row = blockIdx.x, head = blockIdx.y, heads = gridDim.y, width = heads * HEAD, t = threadIdx.x;
    const bool live = row < length;
    float value[3];
#pragma unroll
    for (int part = 0; part < 3; part++) {
        const int channel = part * width + head * HEAD + t;
        float mixed = 0.0f;
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const int from = row + tap - (TAPS - 1);
            const float x = from >= 0 ? qkv[(size_t)from * 3 * width + channel]
                                      : history[(size_t)(from + TAPS - 1) * 3 * width + channel];
            mixed = mixed + x * conv[(size_t)channel * TAPS + tap];
        }
        value[part] = mixed / (1.0f + expf(-mixed));
    }
    const float unit_q = 1.0f / sqrtf(block_sum(value[0] * value[0], scratch) + 1e-6f);
    const float unit_k = 1.0f / sqrtf(block_sum(value[1] * value[1], scratch) + 1e-6f);
    const size_t at = ((size_t)row * heads + head) * HEAD + t;
    const float query = value[0] * unit_q * 0.08838834764831845f, key = live ? value[1] * unit_k : 0.0f;
    const float overlap = block_sum(query * key, scratch);
    q[at] = query;
    k[at] = key;
    v[at] = live ? value[2] : 0.0f;
    const float rate = expf(a_log[head]), shifted = forget[at] + dt_bias[head * HEAD + t];
    const float g = lower_bound != 0.0f ? lower_bound * sigmoid(rate * shifted)
                                        : -rate * (fmaxf(shifted, 0.0f) + log1pf(expf(-fabsf(shifted))));
    decay[at] = live ? expf(g) : 1.0f;
    if (t == 0) {
        const float beta = live ? sigmoid(mixing[(size_t)row * mixing_pitch + head]) : 0.0f;
        *(float2*)(rates + ((size_t)row * heads + head) * 2) = make_float2(beta, overlap);
    }
}

// Grid: (H, 2), 256 threads. A warp holds eight columns: lane = 8 group + column, a group of lanes holds the keys
// 4 group + 16 j + 0..3, so that a warp reads 64 different bytes at a time. state fp32 [H, 128 keys, 128 values] in
// place; o fp32 [rows, H, 128].
extern "C" __global__ void __launch_bounds__(256)
    kda_scan(const float* q, const float* k, const float* v, const float* decay, const float* rates, float* state,
             float* o, int rows) {
    wait_for_earlier();
    extern __shared__ __align__(16) float memory[];
    float(*tile)[3][TILE_ROWS][HEAD] = (float(*)[3][TILE_ROWS][HEAD])memory;
    float(*values)[TILE_ROWS][COLUMNS] = (float(*)[TILE_ROWS][COLUMNS])(memory + 2 * 3 * TILE_ROWS * HEAD);
    __shared__ float2 pairs[2][TILE_ROWS];
    const int head = blockIdx.x, heads = gridDim.x, t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int group = lane >> 3, local = warp * 8 + (lane & 7), column = blockIdx.y * COLUMNS + local;
    float* own = state + (size_t)head * HEAD * HEAD + column;
    float S[32];
#pragma unroll
    for (int i = 0; i < 32; i++) S[i] = own[(size_t)(4 * group + 16 * (i >> 2) + (i & 3)) * HEAD];

    // 256 threads fetch 16 rows: a warp two rows, a float4 a lane and array, and two values of v.
    float4 ahead[2][3];
    float2 next_v[2], next_pair[2];
    const float* arrays[3] = {q, k, decay};
    const auto fetch = [&](int first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t at = (size_t)min(first + 2 * warp + h, rows - 1) * heads + head;
#pragma unroll
            for (int a = 0; a < 3; a++) ahead[h][a] = *(const float4*)(arrays[a] + at * HEAD + 4 * lane);
            next_v[h] = *(const float2*)(v + at * HEAD + blockIdx.y * COLUMNS + 2 * lane);
            next_pair[h] = *(const float2*)(rates + at * 2);
        }
    };
    const auto place = [&](int turn) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = 2 * warp + h;
#pragma unroll
            for (int a = 0; a < 3; a++) *(float4*)&tile[turn][a][row][4 * lane] = ahead[h][a];
            *(float2*)&values[turn][row][2 * lane] = next_v[h];
            if (lane == 0) pairs[turn][row] = next_pair[h];
        }
    };
    fetch(0);
    place(0);
    __syncthreads();
    for (int first = 0, turn = 0; first < rows; first += TILE_ROWS, turn ^= 1) {
        const bool more = first + TILE_ROWS < rows;
        if (more) fetch(first + TILE_ROWS);
        const int count = min(TILE_ROWS, rows - first);
        for (int r = 0; r < count; r++) {
            float kk[32], held[2] = {0.0f, 0.0f}, seen[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const int at = 4 * group + 16 * j;
                const float4 q4 = *(const float4*)&tile[turn][0][r][at];
                const float4 k4 = *(const float4*)&tile[turn][1][r][at];
                const float4 d4 = *(const float4*)&tile[turn][2][r][at];
                const float qs[4] = {q4.x, q4.y, q4.z, q4.w}, ks[4] = {k4.x, k4.y, k4.z, k4.w};
                const float ds[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    S[4 * j + i] *= ds[i];
                    kk[4 * j + i] = ks[i];
                    held[i & 1] = fmaf(S[4 * j + i], ks[i], held[i & 1]);
                    seen[i & 1] = fmaf(S[4 * j + i], qs[i], seen[i & 1]);
                }
            }
            float from_key = held[0] + held[1], from_query = seen[0] + seen[1];
#pragma unroll
            for (int step = 8; step < 32; step <<= 1) {
                from_key += __shfl_xor_sync(0xffffffffu, from_key, step);
                from_query += __shfl_xor_sync(0xffffffffu, from_query, step);
            }
            const float2 pair = pairs[turn][r];
            const float correction = (values[turn][r][local] - from_key) * pair.x;
            if (group == 0)
                o[((size_t)(first + r) * heads + head) * HEAD + column] = fmaf(pair.y, correction, from_query);
#pragma unroll
            for (int i = 0; i < 32; i++) S[i] = fmaf(kk[i], correction, S[i]);
        }
        if (more) place(turn ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 32; i++) own[(size_t)(4 * group + 16 * (i >> 2) + (i & 3)) * HEAD] = S[i];
}

// o, gate fp32 [rows, H, 128] -> RMS norm * sigmoid(gate) * suh, rotated, fp16 [rows, H 128]. Grid: (rows, ceil(H / 4)),
// 128 threads, a warp a head.
extern "C" __global__ void kda_finish(const float* o, const float* gate, const float* norm, const __half* suh,
                                      __half* rotated, int heads, float norm_eps) {
    wait_for_earlier();
    const int head = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (head >= heads) return;
    const size_t at = ((size_t)blockIdx.x * heads + head) * HEAD + 4 * lane;
    const float4 x = *(const float4*)(o + at), z = *(const float4*)(gate + at);
    const float square = warp_sum((x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w));
    const float inverse = rsqrtf(square / HEAD + norm_eps);
    const float* w = norm + 4 * lane;
    const __half* signs = suh + head * HEAD + 4 * lane;
    float v[4] = {x.x * inverse * w[0] * sigmoid(z.x), x.y * inverse * w[1] * sigmoid(z.y),
                  x.z * inverse * w[2] * sigmoid(z.z), x.w * inverse * w[3] * sigmoid(z.w)};
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= __half2float(signs[i]);
    hadamard128(v);
    __half2* out = (__half2*)(rotated + at);
    out[0] = __floats2half2_rn(v[0], v[1]);
    out[1] = __floats2half2_rn(v[2], v[3]);
}
