// EXL3 products of routed rows of a prefill chunk on sm_90a, for every codebook and rate: the transposed product, so
// that decoded weights are the matrix unit's register operand and activations its shared-memory one. A weight is
// decoded once for up to 128 rows and is never stored. One thread fetches, four warp groups decode and multiply.
//
// Numerics and blocks are those of decoded_chunk.cu; blocks begin at multiples of eight pairs. Macros: FORMS
// (decoded.cuh), MOST_HALVES of them, STAGES.

#include "decoded.cuh"
#include "../../csrc/hopper.cuh"

#ifndef MOST_HALVES
#define MOST_HALVES 6
#endif
#ifndef STAGES
#define STAGES 5
#endif
#define AHEAD 2   // products in flight while a warp group decodes
#define ROWS 128  // of a block, at most
#define OUTPUTS 256
#define STEP 64  // inputs of a stage: 128 bytes a row, one swizzled line
#define CONSUMERS 512
#define THREADS (CONSUMERS + 128)
#define CONSUMER_REGISTERS 112
#define FETCH_REGISTERS 32
#define SUM_PITCH 132
#define TILES (OUTPUTS / 16)
#define ROW_STAGE_BYTES (ROWS * STEP * 2)
#define TILE_LINE_BYTES (TILES * 16 * MOST_HALVES)
#define TILE_STAGE_BYTES (STEP / 16 * TILE_LINE_BYTES)

// Where a block's operands come from, and the stages they go to.
struct Operands {
    const unsigned char *rows, *tiles;  // of the first stage
    size_t row_pitch, tile_pitch;       // bytes between stages, and between lines of tiles
    int row_bytes, tile_bytes, k_steps;
    unsigned row_stages, tile_stages;
    u64 *full, *empty;

    // One thread: the copy engine brings stage after stage.
    __device__ __forceinline__ void fetch() const {
        for (int k = 0, slot = 0, parity = 1; k < k_steps; k++) {
            wait(empty + slot, parity);
            expect_bytes(full + slot, row_bytes + STEP / 16 * tile_bytes);
            copy_bulk(row_stages + slot * ROW_STAGE_BYTES, rows + k * row_pitch, row_bytes, full + slot);
#pragma unroll
            for (int t = 0; t < STEP / 16; t++)
                copy_bulk(tile_stages + slot * TILE_STAGE_BYTES + t * TILE_LINE_BYTES,
                          tiles + (size_t)(k * (STEP / 16) + t) * tile_pitch, tile_bytes, full + slot);
            if (++slot == STAGES) {
                slot = 0;
                parity ^= 1;
            }
        }
    }
};

// One warp of a warp group of 64 outputs: sums[j] holds outputs lane / 4 (+ 8) of its 16, rows 8 i + 2 q (+ 1).
template <int CODEBOOK, int HALVES, int N>
__device__ __forceinline__ void multiply(float (&sums)[ROWS / 2], const Operands& from) {
    using Tile = Ring<HALVES>;
    const Tile ring;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const unsigned own = from.tile_stages + warp * 4 * Tile::words;
    for (int k = 0, stage = 0, parity = 0; k < from.k_steps; k++) {
        wait(from.full + stage, parity);
        const unsigned tile = own + stage * TILE_STAGE_BYTES;
        const u64 rows = swizzled_rows(from.row_stages + stage * ROW_STAGE_BYTES);
        u32 loaded[STEP / 16][Tile::size];
#pragma unroll
        for (int t = 0; t < STEP / 16; t++)
#pragma unroll
            for (int i = 0; i < Tile::reach; i++)
                loaded[t][i] = shared_word(tile + t * TILE_LINE_BYTES + 4 * ring.at[i]);
#pragma unroll
        for (int t = 0; t < STEP / 16; t++) {
            u32 windows[Tile::size], w[4];
            ring.align(windows, loaded[t]);
            decode<CODEBOOK, HALVES>(w, windows);
            const u32 registers[4] = {w[0], w[2], w[1], w[3]};  // the compiler keeps those of products in flight
            begin_products();
            product<N>(sums, registers, rows + 2 * t);
            commit_products();
            wait_products<AHEAD>();
            if (t == AHEAD - 1 && k && lane == 0) arrive(from.empty + (stage ? stage - 1 : STAGES - 1));
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    wait_products<0>();
}

// Two warp groups turn their sums into 128 outputs of each row: through memory, rotated back, scaled.
template <typename Output>
__device__ __forceinline__ void store(const float (&sums)[ROWS / 2], float* rotating, const __half* svh,
                                      const float* offset, Output* y, int count, int outputs) {
    const int warp = (threadIdx.x >> 5) & 7, lane = threadIdx.x & 31, q = lane & 3, r = lane >> 2;
    const int column = 4 * (lane & 7);
    uint2 scales[4];
#pragma unroll
    for (int j = 0; j < 4; j++) scales[j] = *(const uint2*)(svh + 32 * j + column);
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        float* at = rotating + (8 * i + 2 * q) * SUM_PITCH + warp * 16 + r;
        at[0] = sums[4 * i];
        at[SUM_PITCH] = sums[4 * i + 1];
        at[8] = sums[4 * i + 2];
        at[SUM_PITCH + 8] = sums[4 * i + 3];
    }
    if (threadIdx.x < CONSUMERS / 2) wait_for_threads(2, CONSUMERS / 2);
    else wait_for_threads(3, CONSUMERS / 2);
    for (int base = warp * 4; base < count; base += 32) {
        const int row = base + (lane >> 3);
        float v[16];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 sum = *(const float4*)(rotating + row * SUM_PITCH + 32 * j + column);
            if (offset) {
                const float4 added = *(const float4*)(offset + 32 * j + column);
                sum = make_float4(sum.x + added.x, sum.y + added.y, sum.z + added.z, sum.w + added.w);
            }
            *(float4*)(v + 4 * j) = sum;
        }
        hadamard128_of_eight(v);
        if (row >= count) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            Output* to = y + (size_t)row * outputs + 32 * j + column;
            const float2 low = __half22float2(*(const __half2*)&scales[j].x);
            const float2 high = __half22float2(*(const __half2*)&scales[j].y);
            const float4 out = make_float4(v[4 * j] * ROTATION_NORM * low.x, v[4 * j + 1] * ROTATION_NORM * low.y,
                                           v[4 * j + 2] * ROTATION_NORM * high.x, v[4 * j + 3] * ROTATION_NORM * high.y);
            if constexpr (sizeof(Output) == 4) {
                *(float4*)to = out;
            } else {
                const __half2 halves[2] = {__floats2half2_rn(out.x, out.y), __floats2half2_rn(out.z, out.w)};
                *(uint2*)to = *(const uint2*)halves;
            }
        }
    }
}

// rotated fp16: [groups, inputs / 64, pairs / 8] groups of eight lines of 128 bytes, 16-byte pieces exchanged by piece
// ^= line mod 8. Block b of rows: matrix block_matrix[b], pairs [block_start[b], block_end[b]), the first a multiple of
// 8; block_count int32 [1]. trellis, form_of, offsets: as for decoded_rows, [groups, matrices]; svh0, svh1: fp16
// [matrices, outputs] of each group. -> y0, y1 fp16 or fp32 (wide) [pairs, outputs]. Grid: (ceil(outputs / 256),
// blocks, groups), THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    routed_chunk(const unsigned long long* trellis, const int* form_of, const unsigned long long* offsets,
                 const __half* rotated, const int* block_matrix, const int* block_start, const int* block_end,
                 const int* block_count, const __half* svh0, const __half* svh1, void* y0, void* y1, int inputs,
                 int outputs0, int outputs1, int matrices, int pairs, int wide) {
    extern __shared__ unsigned char unaligned[];
    __shared__ u64 full[STAGES], empty[STAGES];
    wait_for_earlier();
    const int group = blockIdx.z, outputs = group ? outputs1 : outputs0, block = blockIdx.y, n = blockIdx.x * OUTPUTS;
    const int blocks = *block_count, which = block_matrix[block];  // all asked for at once
    const int first = block_start[block], count = block_end[block] - first;
    if (block >= blocks || n >= outputs) return;
    const int matrix = group * matrices + which;
    const int live = min(OUTPUTS, outputs - n);  // 128 or 256: the warp groups beyond them have nothing to do
    int halves = 0;
#define F(number, codebook, own_halves) \
    case number:                        \
        halves = own_halves;            \
        break;
    switch (form_of[matrix]) { FORMS }
#undef F
    Operands from;
    from.row_pitch = (size_t)pairs * 128;
    from.tile_pitch = (size_t)outputs * halves;
    from.rows = (const unsigned char*)rotated + group * (inputs / 64) * from.row_pitch + (size_t)first * 128;
    from.tiles = (const unsigned char*)trellis[matrix] + (size_t)n * halves;
    from.row_bytes = (count + 7) / 8 * 1024;
    from.tile_bytes = live * halves;
    from.k_steps = inputs / STEP;
    from.row_stages = (shared_address(unaligned) + 1023u) & ~1023u;
    from.tile_stages = from.row_stages + STAGES * ROW_STAGE_BYTES;
    from.full = full;
    from.empty = empty;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            set_barrier(full + s, 1);
            set_barrier(empty + s, live / 16);
        }
        show_barriers();
    }
    __syncthreads();
    const int warp = threadIdx.x >> 5;
    if (warp >= CONSUMERS / 32) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FETCH_REGISTERS));
        if (threadIdx.x == CONSUMERS) from.fetch();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        if (warp * 16 >= live) return;
        float sums[ROWS / 2];
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) sums[i] = 0.0f;
#define F(number, codebook, halves)                                       \
    case number:                                                          \
        if (count > 120) multiply<codebook, halves, 128>(sums, from);     \
        else if (count > 112) multiply<codebook, halves, 120>(sums, from); \
        else if (count > 104) multiply<codebook, halves, 112>(sums, from); \
        else if (count > 96) multiply<codebook, halves, 104>(sums, from); \
        else if (count > 88) multiply<codebook, halves, 96>(sums, from);  \
        else if (count > 80) multiply<codebook, halves, 88>(sums, from);  \
        else if (count > 72) multiply<codebook, halves, 80>(sums, from);  \
        else if (count > 64) multiply<codebook, halves, 72>(sums, from);  \
        else multiply<codebook, halves, 64>(sums, from);                  \
        break;
        switch (form_of[matrix]) { FORMS }
#undef F

        wait_for_threads(1, 2 * live);  // the stages become the sums' memory
        const int half = warp >> 3, column = n + half * 128;
        float* rotating = (float*)(unaligned + (from.row_stages - shared_address(unaligned))) + half * ROWS * SUM_PITCH;
        const __half* svh = (group ? svh1 : svh0) + (size_t)which * outputs + column;
        const float* offset = offsets[matrix] ? (const float*)offsets[matrix] + column : nullptr;
        const size_t to = (size_t)first * outputs + column;
        if (wide) store<float>(sums, rotating, svh, offset, (float*)(group ? y1 : y0) + to, count, outputs);
        else store<__half>(sums, rotating, svh, offset, (__half*)(group ? y1 : y0) + to, count, outputs);
    }
}
