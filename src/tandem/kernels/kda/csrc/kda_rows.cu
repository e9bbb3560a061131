// One decode or verify step of Kimi delta attention, from the integer sums of the qkv product to the rotated
// input of the output product. A block holds one head of one sequence: its state [128, 128] lives in registers.
//
// Pending rows of the step before that were accepted are folded into the state first (lazy commit); this step's
// rows are stored as pending and leave the state alone. Every block owns its head's part of state, history,
// pending rows and `committed`, so blocks need not know of each other.
//
// Grid: (heads, runs), 512 threads. A thread holds 32 keys (its group, warp / 4) of one value column.

#include "../../exl3/csrc/exl3.cuh"

#define HEAD 128
#define MAX_ROWS 16
#define TAPS 4
#define GROUPS 4
#define KEYS (HEAD / GROUPS)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Shared {
    float raw[MAX_ROWS][3][HEAD];    // inputs of the convolution, this step's rows
    float decay[MAX_ROWS][HEAD];     // log decays
    float gate[MAX_ROWS][HEAD];      // output gates, before the sigmoid
    float output[MAX_ROWS][HEAD];
    float small[MAX_ROWS][2 * HEAD]; // low-rank inputs of decays and gates
    float mixing[MAX_ROWS];
    float act[2][3][HEAD];           // convolved q, k, v of the row at hand, two rows in turn
    float expg[2][HEAD];
    float squares[2][8];             // sums of squares of q (0..3) and k (4..7) by warp
    float held[2][GROUPS][HEAD], seen[2][GROUPS][HEAD], overlap[2][GROUPS];
};

// The qkv product is one matrix of 3 H 128 outputs or (grouped) three groups of H 128; svh fp16 [3 H 128].
// small fp32 [rows, small_pitch]: f_a [128], g_a [128], b [H] from column 0 on. forget_up, gate_up fp16
// [H * 128, 128]; conv fp32 [3 H 128, 4]; out_suh fp16 [H * 128]. state fp32 [slots, H, 128 keys, 128 values],
// history [slots, 3, 3 H 128], pending [slots, 16, 4 H 128 + H], committed int32 [slots, H].
// lower_bound 0: the unbounded form of the decay. -> rotated [rows, H * 128] and its peaks.
extern "C" __global__ void __launch_bounds__(512)
    kda_rows(const int* values, const int* sums, const float* scale,
             const __half* svh, const float* small, const __half* forget_up,
             const __half* gate_up, const float* conv, const float* dt_bias,
             const float* a_log, const float* norm, const __half* out_suh,
             const int* positions, const int* run_starts, const int* slots,
             float* state, float* history, float* pending,
             int* committed, float* rotated, float* peaks, int splits,
             int rows_total, int pitch, int grouped, int small_pitch, float lower_bound, float norm_eps) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& s = *(Shared*)memory;
    const int heads = gridDim.x, head = blockIdx.x, run = blockIdx.y, t = threadIdx.x;
    const int lane = t & 31, warp = t >> 5, width = heads * HEAD;
    const int first_row = run_starts[run], rows = run_starts[run + 1] - first_row;
    let_next_begin();
    if (rows <= 0) return;
    const int slot = slots[run];
    int accepted = positions[first_row] - committed[(size_t)slot * heads + head];
    accepted = min(max(accepted, 0), MAX_ROWS);

    // Weights, state and pending rows were written by nobody of this step: they are fetched, and the accepted rows
    // folded, before the products end. Two threads an output of the low-rank projections: 128 decays, then 128 gates.
    const int output = t >> 1, half = t & 1, low_channel = output & (HEAD - 1), which = output >> 7;
    const __half* weight = (which ? gate_up : forget_up) + ((size_t)head * HEAD + low_channel) * HEAD + half * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(weight));
    const int group = warp >> 2, column = (warp & 3) * 32 + lane, key0 = group * KEYS;
    float* at_state = state + (((size_t)slot * heads + head) * HEAD + key0) * HEAD + column;
    float S[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) S[i] = at_state[(size_t)i * HEAD];
    // Threads below 384 own a channel of the convolution: part t / 128 (q, k, v), element t % 128.
    const int part = t >> 7, element = t & (HEAD - 1), channel = part * width + head * HEAD + element;
    const int pending_pitch = 4 * width + heads;
    float* at_pending = pending + (size_t)slot * MAX_ROWS * pending_pitch;
    float* at_history = history + (size_t)slot * (TAPS - 1) * 3 * width + channel;
    float past[TAPS - 1], taps[TAPS];
    if (part < 3) {
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) past[i] = at_history[(size_t)i * 3 * width];
#pragma unroll
        for (int i = 0; i < TAPS; i++) taps[i] = conv[(size_t)channel * TAPS + i];
    }
    // Where a row's values of this thread lie among the pending ones: an input, or (the last 128 threads) a log decay.
    float* own_pending = at_pending + (part < 3 ? channel : 3 * width + head * HEAD + element);
    const auto pending_beta = [&](int row) { return at_pending + (size_t)row * pending_pitch + 4 * width + head; };

    // One row: `own` is this thread's input or log decay, beta the row's mixing rate, output null for a pending row.
    const auto advance = [&](int turn, float own, float beta, float* output) {
        if (part < 3) {
            float mixed = past[0] * taps[0];
            mixed = mixed + past[1] * taps[1];
            mixed = mixed + past[2] * taps[2];
            mixed = mixed + own * taps[3];
            past[0] = past[1];
            past[1] = past[2];
            past[2] = own;
            const float value = mixed / (1.0f + expf(-mixed));
            s.act[turn][part][element] = value;
            const float square = warp_sum(value * value);
            if (lane == 0 && part < 2) s.squares[turn][warp] = square;
        } else {
            s.expg[turn][element] = expf(own);
        }
        __syncthreads();
        const float* q = s.act[turn][0] + key0;
        const float* k = s.act[turn][1] + key0;
        const float* decay = s.expg[turn] + key0;
        float held = 0.0f, seen = 0.0f, overlap = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            S[i] *= decay[i];
            held = fmaf(S[i], k[i], held);
            seen = fmaf(S[i], q[i], seen);
            overlap = fmaf(q[i], k[i], overlap);
        }
        s.held[turn][group][column] = held;
        s.seen[turn][group][column] = seen;
        if (column == 0) s.overlap[turn][group] = overlap;
        __syncthreads();
        const float* sq = s.squares[turn];
        const float unit_q = 1.0f / sqrtf((sq[0] + sq[1]) + (sq[2] + sq[3]) + 1e-6f);
        const float unit_k = 1.0f / sqrtf((sq[4] + sq[5]) + (sq[6] + sq[7]) + 1e-6f);
        const auto total = [&](const float (&x)[GROUPS][HEAD]) {
            return (x[0][column] + x[1][column]) + (x[2][column] + x[3][column]);
        };
        const float correction = (s.act[turn][2][column] - total(s.held[turn]) * unit_k) * beta;
        if (output && group == 0) {
            const float* o = s.overlap[turn];
            const float qk = ((o[0] + o[1]) + (o[2] + o[3])) * unit_k;
            output[column] = (total(s.seen[turn]) + qk * correction) * unit_q * 0.08838834764831845f;
        }
        const float written = correction * unit_k;
#pragma unroll
        for (int i = 0; i < KEYS; i++) S[i] = fmaf(k[i], written, S[i]);
    };
    if (accepted > 0) {
        float next = *own_pending, next_beta = *pending_beta(0);
        for (int row = 0; row < accepted; row++) {
            const float own = next, beta = next_beta;
            if (row + 1 < accepted) {
                next = own_pending[(size_t)(row + 1) * pending_pitch];
                next_beta = *pending_beta(row + 1);
            }
            advance(row & 1, own, beta, nullptr);
        }
#pragma unroll
        for (int i = 0; i < KEYS; i++) at_state[(size_t)i * HEAD] = S[i];
        if (part < 3) {
#pragma unroll
            for (int i = 0; i < TAPS - 1; i++) at_history[(size_t)i * 3 * width] = past[i];
        }
        // Everybody has read `committed` before the first barrier of `advance`.
        if (t == 0) committed[(size_t)slot * heads + head] = positions[first_row];
    }
    uint4 packed[8];
#pragma unroll
    for (int i = 0; i < 4; i++) packed[i] = __ldg((const uint4*)(weight + 8 * i));
    const float4 suh = factors(out_suh + head * HEAD + 4 * lane);
    const float bias = dt_bias[head * HEAD + low_channel], rate = expf(a_log[head]);
    wait_for_earlier();

    // The products' outputs of this head, and the low-rank inputs.
    const Partial from = {values, sums, scale, splits, grouped ? 3 * rows_total : rows_total, pitch};
    for (int i = t; i < rows * 2 * HEAD; i += 512)
        s.small[i / (2 * HEAD)][i % (2 * HEAD)] = small[(size_t)(first_row + i / (2 * HEAD)) * small_pitch + i % (2 * HEAD)];
    if (t < rows) s.mixing[t] = sigmoid(small[(size_t)(first_row + t) * small_pitch + 2 * HEAD + head]);
    for (int item = warp; item < 3 * rows; item += 16) {
        const int row = item / 3, which_part = item % 3;
        float v[4];
        const int pair = first_row + row + (grouped ? which_part * rows_total : 0);
        const __half* of_part = svh + which_part * width;
        if (grouped) finish_block(v, from, pair, of_part, head * HEAD + 4 * lane);
        else finish_block(v, from, pair, svh, which_part * width + head * HEAD + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++) s.raw[row][which_part][4 * lane + i] = v[i];
    }
#pragma unroll
    for (int i = 4; i < 8; i++) packed[i] = __ldg((const uint4*)(weight + 8 * i));
    __syncthreads();
    for (int row = 0; row < rows; row++) {
        const float* x = s.small[row] + which * HEAD + half * 64;
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const __half2* h = (const __half2*)&packed[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 w = __half22float2(h[j]);
                dot = fmaf(w.x, x[8 * i + 2 * j], dot);
                dot = fmaf(w.y, x[8 * i + 2 * j + 1], dot);
            }
        }
        dot += __shfl_xor_sync(0xffffffffu, dot, 1);
        if (half == 0 && which) s.gate[row][low_channel] = dot;
        if (half == 0 && !which) {
            const float shifted = dot + bias;
            s.decay[row][low_channel] =
                lower_bound != 0.0f ? lower_bound * sigmoid(rate * shifted)
                                    : -rate * (fmaxf(shifted, 0.0f) + log1pf(expf(-fabsf(shifted))));
        }
    }
    __syncthreads();
    for (int row = 0; row < rows; row++) {
        const float own = part < 3 ? s.raw[row][part][element] : s.decay[row][element], beta = s.mixing[row];
        own_pending[(size_t)row * pending_pitch] = own;
        if (t == 0) *pending_beta(row) = beta;
        advance((accepted + row) & 1, own, beta, s.output[row]);
    }
    __syncthreads();
    if (warp < rows) {
        const float4 o = *(const float4*)(s.output[warp] + 4 * lane);
        const float4 z = *(const float4*)(s.gate[warp] + 4 * lane);
        const float square = warp_sum((o.x * o.x + o.y * o.y) + (o.z * o.z + o.w * o.w));
        const float inverse = rsqrtf(square / HEAD + norm_eps);
        const float* w = norm + 4 * lane;
        float v[4] = {o.x * inverse * w[0] * sigmoid(z.x), o.y * inverse * w[1] * sigmoid(z.y),
                      o.z * inverse * w[2] * sigmoid(z.z), o.w * inverse * w[3] * sigmoid(z.w)};
        const size_t row = first_row + warp;
        store_rotated(v, suh, head * HEAD + 4 * lane, rotated + row * width, peaks + row * heads);
    }
}
