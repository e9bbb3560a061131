// Kimi delta attention over a prefill chunk: convolution, gates and all that does not know the state for all rows at
// once; then the recurrence, eight rows at a time, with a head's state in registers; then the gated norm and the
// rotation for the output product.
//
// Eight rows together (P the running product of the decays d, S the state before them, rows i < j):
//   c_j = beta_j (v_j - S^T P_j k_j - sum_i (w_ij . k_j) c_i)     w_ij = k_i times the decays of rows i + 1 .. j
//   o_j = S^T P_j q_j + sum_i (w_ij . q_j) c_i + (k_j . q_j) c_j
//   S   = P_7 S + sum_i w_i7 c_i
// Every factor is at most 1: nothing overflows however steep the decay. The sums over i < j are solved beforehand, as
// c = T (v - S^T P k). What knows the state runs on the matrix unit in tf32, both factors in two parts, high and low, of
// which the three larger products are added up in fp32. A row's sums do not know of the rows after it.

#include "../../exl3/csrc/exl3.cuh"
#include "../../csrc/tf32.cuh"

#define HEAD 128
#define TAPS 4
#define BLOCK 8  // rows
#define PREPARE_BLOCKS 2
// A record, fp32, of eight rows of a head: P_j k_j [8, 128], P_j q_j [8, 128], w_j7 [8, 128], P_7 [128]; T [8, 8] and
// the w_ij . q_j [8 j, 8 i] (w_jj = k_j; 0 for i > j); v [8, 128].
#define QUERY (8 * HEAD)
#define SUFFIX (16 * HEAD)
#define DECAY (24 * HEAD)
#define NUMBERS (25 * HEAD)
#define VALUE (26 * HEAD)
#define RECORD (34 * HEAD)
#define COLUMNS 64  // of a block of the scan; two blocks a head

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

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
        float solved[BLOCK];  // lane i: column i of T
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
                    value[part][i] = mixed * sigmoid(mixed);
                    past[0][part][i] = past[1][part][i];
                    past[1][part][i] = past[2][part][i];
                    past[2][part][i] = next[part][i];
                }
            if (row + 1 < end) fetch(next, row + 1);
            const float4 raw = *(const float4*)(forget + (size_t)min(row, rows - 1) * width + channel);
            const float raws[4] = {raw.x, raw.y, raw.z, raw.w};
            const float unit_q = rsqrtf(dot(value[0], value[0]) + 1e-6f);
            const float unit_k = rsqrtf(dot(value[1], value[1]) + 1e-6f);
            float query[4], key[4], seen[BLOCK] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float shifted = raws[i] + biases[i];
                const float g = lower_bound != 0.0f
                                    ? lower_bound * sigmoid(rate * shifted)
                                    : -rate * (fmaxf(shifted, 0.0f) + log1pf(expf(-fabsf(shifted))));
                const float decay = live ? __expf(g) : 1.0f;
                query[i] = value[0][i] * unit_q * 0.08838834764831845f;
                key[i] = live ? value[1][i] * unit_k : 0.0f;
                if (!live) value[2][i] = 0.0f;
                running[i] *= decay;
#pragma unroll
                for (int earlier = 0; earlier < j; earlier++) w[earlier][i] *= decay;
                w[j][i] = key[i];
            }
            float left = lane == j ? 1.0f : 0.0f;
#pragma unroll
            for (int i = 0; i <= j; i++) {
                if (i < j) left = fmaf(-dot(w[i], key), solved[i], left);
                seen[i] = dot(w[i], query);
            }
            solved[j] = live ? left * sigmoid(mixing[(size_t)row * mixing_pitch + head]) : 0.0f;
            float* at = out + j * HEAD + 4 * lane;
            *(float4*)at =
                make_float4(running[0] * key[0], running[1] * key[1], running[2] * key[2], running[3] * key[3]);
            *(float4*)(at + QUERY) = make_float4(running[0] * query[0], running[1] * query[1], running[2] * query[2],
                                                 running[3] * query[3]);
            *(float4*)(at + VALUE) = *(const float4*)value[2];
            if (lane < BLOCK) out[NUMBERS + j * BLOCK + lane] = solved[j];
            if (lane == 0) {
                *(float4*)(out + NUMBERS + BLOCK * BLOCK + j * BLOCK) = *(const float4*)seen;
                *(float4*)(out + NUMBERS + BLOCK * BLOCK + j * BLOCK + 4) = *(const float4*)(seen + 4);
            }
        }
#pragma unroll
        for (int j = 0; j < BLOCK; j++) *(float4*)(out + SUFFIX + j * HEAD + 4 * lane) = *(const float4*)w[j];
        *(float4*)(out + DECAY + 4 * lane) = *(const float4*)running;
    }
}

// A record in shared memory, without the other half of v. Rows lie apart so that what the lanes of a warp read at once
// lies in different banks: pairs of eight rows' columns, or the columns of pairs of rows.
struct Stage {
    float key[BLOCK][HEAD + 8], query[BLOCK][HEAD + 8], suffix[BLOCK][HEAD + 4], decay[HEAD];
    float solve[BLOCK][BLOCK], seen[BLOCK][BLOCK], value[BLOCK][COLUMNS + 4];
};

#define DEPTH 6  // records in flight

__device__ __forceinline__ void copy_16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

// One block of 128 threads fetches a record's pieces of 16 bytes.
__device__ __forceinline__ void fetch(Stage& stage, const float* record, int column) {
    const int row = threadIdx.x >> 5, at = 4 * (threadIdx.x & 31);
#pragma unroll
    for (int j = row; j < BLOCK; j += 4) {
        copy_16(&stage.key[j][at], record + j * HEAD + at);
        copy_16(&stage.query[j][at], record + QUERY + j * HEAD + at);
        copy_16(&stage.suffix[j][at], record + SUFFIX + j * HEAD + at);
    }
    copy_16(&stage.value[threadIdx.x >> 4][4 * (threadIdx.x & 15)],
            record + VALUE + (threadIdx.x >> 4) * HEAD + column + 4 * (threadIdx.x & 15));
    if (threadIdx.x < HEAD / 4) copy_16(stage.decay + at, record + DECAY + at);
    else if (threadIdx.x < HEAD / 2) copy_16(&stage.solve[0][0] + at, record + NUMBERS + at);
}

// Grid: (H, 2), 128 threads, a warp 16 columns of all 128 keys. With lane = 4 g + t, tile n of the state holds the keys
// 8 n + 2 t + 0..1 of the columns g and g + 8: as the matrix unit leaves sums [columns, keys], and, its keys in another
// order, as it takes a factor [columns, keys]. The same goes for sums [columns, rows].
// state fp32 [H, 128 keys, 128 values] in place; o fp32 [rows, H, 128].
extern "C" __global__ void __launch_bounds__(128)
    kda_scan(const float* records, float* state, float* o, int rows) {
    wait_for_earlier();
    extern __shared__ __align__(16) unsigned char memory[];
    Stage* stages = (Stage*)memory;
    const int head = blockIdx.x, heads = gridDim.x, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int local = (threadIdx.x >> 5) * 16 + g, column = blockIdx.y * COLUMNS + local;
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    float* own = state + ((size_t)head * HEAD + 2 * t) * HEAD + column;
    float S[HEAD / 8][4];
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) S[n][i] = own[(size_t)(8 * n + (i & 1)) * HEAD + 8 * (i >> 1)];

    const auto ask = [&](int block) {
        if (block < blocks)
            fetch(stages[block % DEPTH], records + ((size_t)block * heads + head) * RECORD, blockIdx.y * COLUMNS);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int block = 0; block < DEPTH - 1; block++) ask(block);
    for (int block = 0; block < blocks; block++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 2) : "memory");
        __syncthreads();
        ask(block + DEPTH - 1);
        const Stage& stage = stages[block % DEPTH];
        // By kind of product, so that fewer wait for each other.
        float held[3][4] = {}, seen[3][4] = {};
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++) {
            const Parts<4> columns({S[n][0], S[n][2], S[n][1], S[n][3]});
            const float2 k = *(const float2*)&stage.key[g][8 * n + 2 * t], q = *(const float2*)&stage.query[g][8 * n + 2 * t];
            multiply_apart(held, columns, Parts<2>({k.x, k.y}));
            multiply_apart(seen, columns, Parts<2>({q.x, q.y}));
        }
        float rest[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            rest[i] = stage.value[2 * t + (i & 1)][local + 8 * (i >> 1)] - (held[0][i] + (held[1][i] + held[2][i]));
        float added[3][4] = {};
        multiply_apart(added, Parts<4>({rest[0], rest[2], rest[1], rest[3]}),
                       Parts<2>({stage.solve[g][2 * t], stage.solve[g][2 * t + 1]}));
        float c[4];
#pragma unroll
        for (int i = 0; i < 4; i++) c[i] = added[0][i] + (added[1][i] + added[2][i]);
        const Parts<4> rows_added({c[0], c[2], c[1], c[3]});
        multiply_apart(seen, rows_added, Parts<2>({stage.seen[g][2 * t], stage.seen[g][2 * t + 1]}));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = block * BLOCK + 2 * t + (i & 1);
            if (row < rows)
                o[((size_t)row * heads + head) * HEAD + column + 8 * (i >> 1)] = seen[0][i] + (seen[1][i] + seen[2][i]);
        }
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++) {
            const float2 decay = *(const float2*)(stage.decay + 8 * n + 2 * t);
#pragma unroll
            for (int i = 0; i < 4; i++) S[n][i] *= i & 1 ? decay.y : decay.x;
            multiply(S[n], rows_added, Parts<2>({stage.suffix[2 * t][8 * n + g], stage.suffix[2 * t + 1][8 * n + g]}));
        }
    }
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[(size_t)(8 * n + (i & 1)) * HEAD + 8 * (i >> 1)] = S[n][i];
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
