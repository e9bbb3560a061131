// Kimi delta attention over a prefill chunk: convolution, gates and all that does not know the state for all rows at
// once; then the recurrence, four rows at a time, with a head's state in registers; then the gated norm and the
// rotation for the output product.
//
// Four rows together (P the running product of the decays d, S the state before them, rows i < j):
//   c_j = beta_j (v_j - S^T P_j k_j - sum_i (w_ij . k_j) c_i)     w_ij = k_i times the decays of rows i + 1 .. j
//   o_j = S^T P_j q_j + sum_i (w_ij . q_j) c_i + (k_j . q_j) c_j
//   S   = P_3 S + sum_i w_i3 c_i
// Every factor is at most 1: nothing overflows however steep the decay. A row's sums do not know of the rows after it.

#include "../../exl3/csrc/exl3.cuh"

#define HEAD 128
#define TAPS 4
#define BLOCK 4  // rows
#define PREPARE_BLOCKS 4
// A record, fp32, of four rows of a head: P_j k_j [4, 128], P_j q_j [4, 128], w_j3 [4, 128], P_3 [128]; for each row j
// eight numbers: w_ij . k_j for i < 3, w_ij . q_j for i < 4 (with w_jj = k_j; 0 for i > j), beta_j; v [2, 4, 64].
#define SUFFIX (8 * HEAD)
#define DECAY (12 * HEAD)
#define NUMBERS (13 * HEAD)
#define VALUE (NUMBERS + 8 * BLOCK)
#define RECORD (VALUE + 4 * HEAD)
#define COLUMNS 64  // of a block of the scan; two blocks a head
#define DEPTH 8     // records in flight
#define STAGE (VALUE + BLOCK * COLUMNS)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float dot(const float (&a)[4], const float (&b)[4]) {
    return warp_sum((a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3]));
}

// qkv fp32 [rows, 3 H 128], forget fp32 [rows, H 128], mixing fp32 [rows, mixing_pitch] from column 0. Rows at and
// after `length` are padding: they neither decay nor write. Grid: (ceil(rows / 16), ceil(H / 4)), 128 threads: a warp a
// head, four channels a lane. -> records fp32 [ceil(rows / 4), H, RECORD].
extern "C" __global__ void __launch_bounds__(128, 3)
    kda_prepare(const float* qkv, const float* forget, const float* mixing, const float* history, const float* conv,
                const float* dt_bias, const float* a_log, float* records, int rows, int heads, int mixing_pitch,
                int length, float lower_bound) {
    wait_for_earlier();
    const int head = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31, width = heads * HEAD;
    if (head >= heads) return;
    const int first = blockIdx.x * BLOCK * PREPARE_BLOCKS, end = first + BLOCK * PREPARE_BLOCKS;
    const int channel = head * HEAD + 4 * lane;
    const auto fetch = [&](float (&x)[3][4], int wanted) {
        const int row = min(wanted, rows - 1);
        const float* from = row >= 0 ? qkv + (size_t)row * 3 * width : history + (size_t)(row + TAPS - 1) * 3 * width;
#pragma unroll
        for (int part = 0; part < 3; part++) *(float4*)x[part] = *(const float4*)(from + part * width + channel);
    };
    float taps[3][4][TAPS], past[TAPS - 1][3][4], next[3][4];
#pragma unroll
    for (int part = 0; part < 3; part++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float4*)taps[part][i] = *(const float4*)(conv + (size_t)(part * width + channel + i) * TAPS);
#pragma unroll
    for (int tap = 0; tap < TAPS - 1; tap++) fetch(past[tap], first + tap - (TAPS - 1));
    fetch(next, first);
    const float4 bias = *(const float4*)(dt_bias + channel);
    const float rate = expf(a_log[head]), biases[4] = {bias.x, bias.y, bias.z, bias.w};

    for (int block = first; block < min(end, rows); block += BLOCK) {
        float* out = records + ((size_t)(block / BLOCK) * heads + head) * RECORD;
        float running[4] = {1.0f, 1.0f, 1.0f, 1.0f}, w[BLOCK][4];
#pragma unroll
        for (int j = 0; j < BLOCK; j++) {
            const int row = block + j;
            const bool live = row < length;
            float value[3][4];
#pragma unroll
            for (int part = 0; part < 3; part++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float mixed = past[0][part][i] * taps[part][i][0];
                    mixed = mixed + past[1][part][i] * taps[part][i][1];
                    mixed = mixed + past[2][part][i] * taps[part][i][2];
                    mixed = mixed + next[part][i] * taps[part][i][3];
                    value[part][i] = mixed / (1.0f + expf(-mixed));
                    past[0][part][i] = past[1][part][i];
                    past[1][part][i] = past[2][part][i];
                    past[2][part][i] = next[part][i];
                }
            if (row + 1 < end) fetch(next, row + 1);
            const float4 raw = *(const float4*)(forget + (size_t)min(row, rows - 1) * width + channel);
            const float raws[4] = {raw.x, raw.y, raw.z, raw.w};
            const float unit_q = 1.0f / sqrtf(dot(value[0], value[0]) + 1e-6f);
            const float unit_k = 1.0f / sqrtf(dot(value[1], value[1]) + 1e-6f);
            float query[4], key[4], numbers[8] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float shifted = raws[i] + biases[i];
                const float g = lower_bound != 0.0f
                                    ? lower_bound * sigmoid(rate * shifted)
                                    : -rate * (fmaxf(shifted, 0.0f) + log1pf(expf(-fabsf(shifted))));
                const float decay = live ? expf(g) : 1.0f;
                query[i] = value[0][i] * unit_q * 0.08838834764831845f;
                key[i] = live ? value[1][i] * unit_k : 0.0f;
                if (!live) value[2][i] = 0.0f;
                running[i] *= decay;
#pragma unroll
                for (int earlier = 0; earlier < j; earlier++) w[earlier][i] *= decay;
                w[j][i] = key[i];
            }
#pragma unroll
            for (int i = 0; i <= j; i++) {
                if (i < j) numbers[i] = dot(w[i], key);
                numbers[3 + i] = dot(w[i], query);
            }
            numbers[7] = live ? sigmoid(mixing[(size_t)row * mixing_pitch + head]) : 0.0f;
            float* at = out + j * HEAD + 4 * lane;
            *(float4*)at =
                make_float4(running[0] * key[0], running[1] * key[1], running[2] * key[2], running[3] * key[3]);
            *(float4*)(at + BLOCK * HEAD) = make_float4(running[0] * query[0], running[1] * query[1],
                                                        running[2] * query[2], running[3] * query[3]);
            *(float4*)(out + VALUE + (lane >> 4) * BLOCK * COLUMNS + j * COLUMNS + 4 * (lane & 15)) =
                *(const float4*)value[2];
            if (lane == 0) {
                *(float4*)(out + NUMBERS + 8 * j) = *(const float4*)numbers;
                *(float4*)(out + NUMBERS + 8 * j + 4) = *(const float4*)(numbers + 4);
            }
        }
#pragma unroll
        for (int j = 0; j < BLOCK; j++) *(float4*)(out + SUFFIX + j * HEAD + 4 * lane) = *(const float4*)w[j];
        *(float4*)(out + DECAY + 4 * lane) = *(const float4*)running;
    }
}

// Sums over the eight groups of lanes (bits 2..4): every lane gets all of them.
__device__ __forceinline__ void sum_groups(float (&v)[BLOCK][4]) {
#pragma unroll
    for (int step = 4; step < 32; step <<= 1)
#pragma unroll
        for (int j = 0; j < BLOCK; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) v[j][c] += __shfl_xor_sync(0xffffffffu, v[j][c], step);
}

// The same sums, but group g gets only those of row g / 2 and columns 2 (g mod 2) + 0..1.
__device__ __forceinline__ float2 share_sums(const float (&v)[BLOCK][4]) {
    float left[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float low = v[i >> 2][i & 3], high = v[2 + (i >> 2)][i & 3];
        const bool upper = threadIdx.x & 16;
        left[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, 16);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool upper = threadIdx.x & 8;
        left[i] = (upper ? left[i + 4] : left[i]) + __shfl_xor_sync(0xffffffffu, upper ? left[i] : left[i + 4], 8);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool upper = threadIdx.x & 4;
        left[i] = (upper ? left[i + 2] : left[i]) + __shfl_xor_sync(0xffffffffu, upper ? left[i] : left[i + 2], 4);
    }
    return make_float2(left[0], left[1]);
}

// Grid: (H, 2), 128 threads. A warp holds 16 columns: lane = 4 group + quarter has the keys 4 group + 32 j + 0..3 of
// the columns 4 quarter + 0..3. state fp32 [H, 128 keys, 128 values] in place; o fp32 [rows, H, 128].
extern "C" __global__ void __launch_bounds__(128)
    kda_scan(const float* records, float* state, float* o, int rows) {
    wait_for_earlier();
    extern __shared__ __align__(16) float memory[];
    const int head = blockIdx.x, heads = gridDim.x, lane = threadIdx.x & 31, group = lane >> 2;
    const int local = (threadIdx.x >> 5) * 16 + 4 * (lane & 3), column = blockIdx.y * COLUMNS + local;
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    float* own = state + ((size_t)head * HEAD + 4 * group) * HEAD + column;
    float S[16][4];
#pragma unroll
    for (int i = 0; i < 16; i++) *(float4*)S[i] = *(const float4*)(own + (size_t)(32 * (i >> 2) + (i & 3)) * HEAD);

    // A stage holds a record without the other half of v: four pieces of 16 bytes a thread, the last not of everybody.
    const float* from = records + (size_t)head * RECORD + 4 * threadIdx.x;
    const int last = threadIdx.x + 384, skipped = last < VALUE / 4 ? 0 : blockIdx.y * BLOCK * COLUMNS;
    const unsigned into = (unsigned)__cvta_generic_to_shared(memory) + 16 * threadIdx.x;
    const auto fetch = [&](int block) {
        if (block < blocks) {
            const float* at = from + (size_t)block * heads * RECORD;
            const unsigned to = into + block % DEPTH * STAGE * 4;
#pragma unroll
            for (int i = 0; i < 3; i++)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 2048 * i), "l"(at + 512 * i)
                             : "memory");
            if (last < STAGE / 4)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 6144), "l"(at + 1536 + skipped)
                             : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int block = 0; block < DEPTH - 1; block++) fetch(block);
    for (int block = 0; block < blocks; block++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
        __syncthreads();
        fetch(block + DEPTH - 1);
        const float* stage = memory + (block % DEPTH) * STAGE;
        const float* vectors = stage + 4 * group;
        float c[BLOCK][4] = {}, seen[BLOCK][4] = {};
        const auto times_state = [&](float (&sums)[BLOCK][4], const float* rows_of) {
#pragma unroll
            for (int j = 0; j < BLOCK; j++)
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const float4 x = *(const float4*)(rows_of + j * HEAD + 32 * part);
                    const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int n = 0; n < 4; n++) sums[j][n] = fmaf(S[4 * part + i][n], xs[i], sums[j][n]);
                }
        };
        times_state(c, vectors);
        sum_groups(c);
        times_state(seen, vectors + BLOCK * HEAD);
        float2 output = share_sums(seen);
#pragma unroll
        for (int j = 0; j < BLOCK; j++) {
            const float4 of_key = *(const float4*)(stage + NUMBERS + 8 * j);
            const float ofs[3] = {of_key.x, of_key.y, of_key.z}, beta = stage[NUMBERS + 8 * j + 7];
            const float4 v = *(const float4*)(stage + VALUE + j * COLUMNS + local);
            const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float held = c[j][n];
#pragma unroll
                for (int i = 0; i < j; i++) held = fmaf(ofs[i], c[i][n], held);
                c[j][n] = (vs[n] - held) * beta;
            }
        }
        const int row = block * BLOCK + (group >> 1);
        const float* of_query = stage + NUMBERS + 8 * (group >> 1) + 3;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            output.x = fmaf(of_query[i], group & 1 ? c[i][2] : c[i][0], output.x);
            output.y = fmaf(of_query[i], group & 1 ? c[i][3] : c[i][1], output.y);
        }
        if (row < rows) *(float2*)(o + ((size_t)row * heads + head) * HEAD + column + 2 * (group & 1)) = output;
#pragma unroll
        for (int part = 0; part < 4; part++) {
            float decays[4], w[BLOCK][4];
            *(float4*)decays = *(const float4*)(vectors + DECAY + 32 * part);
#pragma unroll
            for (int j = 0; j < BLOCK; j++) *(float4*)w[j] = *(const float4*)(vectors + SUFFIX + j * HEAD + 32 * part);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    float s = S[4 * part + i][n] * decays[i];
#pragma unroll
                    for (int j = 0; j < BLOCK; j++) s = fmaf(w[j][i], c[j][n], s);
                    S[4 * part + i][n] = s;
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) *(float4*)(own + (size_t)(32 * (i >> 2) + (i & 3)) * HEAD) = *(const float4*)S[i];
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
