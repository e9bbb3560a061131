// Absorbed latent attention of a prefill chunk's rows on sm_90: 64 heads of one row over the tokens it may see.
//
// Two warp groups multiply, a third gathers tokens. Of every 128 tokens each of the two scores 64 and both then add
// all 128 to their half of the latent values; maxima and weights pass between them through shared memory. A row's
// tokens are cut at fixed places: its bits depend on no other row. Macros: PAGE and POOL, in tokens.

#include <cuda_fp16.h>

#include "../../csrc/hopper.cuh"
#include "../../csrc/overlap.cuh"

#ifndef PAGE
#define PAGE 256
#endif
#ifndef POOL
#define POOL 4
#endif
#define LEAST __int_as_float(0xff800000)  // minus infinity
#define LATENT 512
#define HEADS 64         // of a block
#define TOKENS 64        // a group scores at a time
#define SLICE 16         // tokens whose memory is free together
#define PANEL_BYTES 8192 // 64 rows (heads or tokens) of 64 values
#define PANELS (LATENT / 64)
#define BLOCK_BYTES (PANELS * PANEL_BYTES)
#define MULTIPLIERS 256
#define THREADS (MULTIPLIERS + 128)
#define MULTIPLIER_REGISTERS 224
#define GATHER_REGISTERS 56

struct Meeting {
    u64 queries, full[2], empty[2 * TOKENS / SLICE];
    float maxima[2][HEADS], totals[2][HEADS];
};

// The tokens a row sees: all of them, or those of `count` chosen pools and the incomplete pool at the end.
struct Seen {
    const int *chosen, *pages;
    int pools, count, length;
    bool sparse;

    __device__ __forceinline__ size_t token(int j) const {
        int at = j;
        if (sparse) at = j < count * POOL ? chosen[j / POOL] * POOL + j % POOL : pools * POOL + j - count * POOL;
        return (size_t)pages[at / PAGE] * PAGE + at % PAGE;
    }
};

// One warp group: eight threads a row of 1 KiB, 16 rows at a time.
__device__ __forceinline__ void gather(const __half* q, const __half* cache, const Seen& seen, unsigned queries,
                                       unsigned blocks, Meeting& meeting) {
    const int thread = threadIdx.x - MULTIPLIERS, piece = thread & 7, own = thread >> 3;
    const unsigned place = own * 128 + ((piece ^ (own & 7)) << 4);
#pragma unroll
    for (int r = 0; r < HEADS / 16; r++)
#pragma unroll
        for (int p = 0; p < PANELS; p++)
            copy_16(queries + p * PANEL_BYTES + r * 2048 + place,
                    q + (size_t)(16 * r + own) * LATENT + p * 64 + piece * 8);
    arrive_after_copies(&meeting.queries);
    const int slices = (seen.length + 2 * TOKENS - 1) / (2 * TOKENS) * (2 * TOKENS / SLICE), last = seen.length - 1;
    size_t next = seen.token(min(own, last));
    for (int s = 0; s < slices; s++) {
        const int slot = s & 7;
        const __half* from = cache + next * LATENT + piece * 8;
        next = seen.token(min((s + 1) * SLICE + own, last));  // past the end: the last one, whose weight will be 0
        if (s >= 8) wait(&meeting.empty[slot], (s / 8 - 1) & 1);
        const unsigned to = blocks + (slot >> 2) * BLOCK_BYTES + (slot & 3) * 2048 + place;
#pragma unroll
        for (int p = 0; p < PANELS; p++) copy_16(to + p * PANEL_BYTES, from + p * 64);
        arrive_after_copies(&meeting.full[slot >> 2]);
    }
}

// Four lanes hold a row of scores.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The memory of a pair's slice is free once its product, and all before it, are done.
template <int PENDING>
__device__ __forceinline__ void release(Meeting& meeting, int lane) {
    wait_products<PENDING>();
    if (lane == 0) arrive(&meeting.empty[7 - PENDING]);
}

// q fp16 [rows, heads, 512], cache fp16 [tokens, 512], positions and run_of_row int32 [rows], tables int32 [runs,
// max_pages], chosen int32 [rows, count] (read for rows that see more than `count` pools). Scores are q . c times
// scale / ln 2. -> attended fp16 [rows, heads, 512]. Grid: (heads / 64, rows), THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_chunk(const __half* q, const __half* cache, const int* positions, const int* run_of_row, const int* tables,
                 const int* chosen, __half* attended, int heads, int max_pages, int count, float scale) {
    extern __shared__ unsigned char unaligned[];
    __shared__ Meeting meeting;
    wait_for_earlier();
    const unsigned queries = (shared_address(unaligned) + 1023u) & ~1023u;
    const unsigned blocks = queries + BLOCK_BYTES, weights = blocks + 2 * BLOCK_BYTES;
    if (threadIdx.x == 0) {
        set_barrier(&meeting.queries, 128);
        for (int b = 0; b < 2; b++) set_barrier(&meeting.full[b], 128 * TOKENS / SLICE);
        for (int s = 0; s < 2 * TOKENS / SLICE; s++) set_barrier(&meeting.empty[s], MULTIPLIERS / 32);
        show_barriers();
    }
    __syncthreads();
    const size_t row = blockIdx.y;
    Seen seen;
    seen.pools = (positions[row] + 1) / POOL;
    seen.count = count;
    seen.sparse = seen.pools > count;
    seen.length = seen.sparse ? count * POOL + positions[row] + 1 - seen.pools * POOL : positions[row] + 1;
    seen.chosen = chosen + row * count;
    seen.pages = tables + (size_t)run_of_row[row] * max_pages;
    const size_t at = (row * heads + blockIdx.x * HEADS) * LATENT;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp >> 2;
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GATHER_REGISTERS));
        gather(q + at, cache, seen, queries, blocks, meeting);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIER_REGISTERS));
        const int r = 16 * (warp & 3) + (lane >> 2), pairs = (seen.length + 2 * TOKENS - 1) / (2 * TOKENS);
        const unsigned own_weights = weights + group * PANEL_BYTES + r * 128 + 4 * (lane & 3);
        float o[128], top[2] = {LEAST, LEAST}, total[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 128; i++) o[i] = 0.0f;
        wait(&meeting.queries, 0);
        for (int pair = 0; pair < pairs; pair++) {
            float s[32];
#pragma unroll
            for (int i = 0; i < 32; i++) s[i] = 0.0f;
            wait(&meeting.full[group], pair & 1);
            show_to_matrix_unit();
            begin_products();
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                const u64 a = swizzled_rows(queries + p * PANEL_BYTES);
                const u64 b = swizzled_rows(blocks + group * BLOCK_BYTES + p * PANEL_BYTES);
#pragma unroll
                for (int t = 0; t < 4; t++) product_of_rows(s, a + 2 * t, b + 2 * t);
            }
            commit_products();
            wait_products<0>();
            const int left = seen.length - (2 * pair + group) * TOKENS - 2 * (lane & 3);
            if (left < TOKENS) {
#pragma unroll
                for (int i = 0; i < 32; i++)
                    if (8 * (i >> 2) + (i & 1) >= left) s[i] = LEAST;
            }
            float high[2] = {s[0], s[2]};
#pragma unroll
            for (int i = 0; i < 32; i++) high[(i >> 1) & 1] = fmaxf(high[(i >> 1) & 1], s[i]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                high[h] = row_max(high[h]);
                if ((lane & 3) == 0) meeting.maxima[group][r + 8 * h] = high[h];
            }
            wait_for_threads(1, MULTIPLIERS);
            float factor[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float now = fmaxf(top[h], fmaxf(high[h], meeting.maxima[1 - group][r + 8 * h]));
                factor[h] = exp2f((top[h] - now) * scale);
                top[h] = now;
                total[h] *= factor[h];
            }
#pragma unroll
            for (int i = 0; i < 32; i += 2) {
                const int h = (i >> 1) & 1;
                const float low = exp2f((s[i] - top[h]) * scale), next = exp2f((s[i + 1] - top[h]) * scale);
                total[h] += low + next;
                const __half2 both = __floats2half2_rn(low, next);
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(own_weights + h * 1024 + (((i >> 2) ^ (r & 7)) << 4)),
                             "r"(*(const u32*)&both)
                             : "memory");
            }
            if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < 128; i++) o[i] *= factor[(i >> 1) & 1];
            }
            show_to_matrix_unit();
            wait_for_threads(2, MULTIPLIERS);
            wait(&meeting.full[1 - group], pair & 1);
            show_to_matrix_unit();
            begin_products();
#pragma unroll
            for (int slice = 0; slice < 8; slice++) {
                const unsigned values = blocks + (slice >> 2) * BLOCK_BYTES + group * (BLOCK_BYTES / 2);
                product_of_columns(o, swizzled_rows(weights + (slice >> 2) * PANEL_BYTES) + 2 * (slice & 3),
                                   swizzled_columns(values + (slice & 3) * 2048, PANEL_BYTES));
                commit_products();
            }
            release<7>(meeting, lane);
            release<6>(meeting, lane);
            release<5>(meeting, lane);
            release<4>(meeting, lane);
            release<3>(meeting, lane);
            release<2>(meeting, lane);
            release<1>(meeting, lane);
            release<0>(meeting, lane);
        }
        // Both groups' totals; then halves through this group's part of the first block, a row of 512 bytes each.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            total[h] = row_sum(total[h]);
            if ((lane & 3) == 0) meeting.totals[group][r + 8 * h] = total[h];
        }
        wait_for_threads(1, MULTIPLIERS);
        unsigned char* out = unaligned + (blocks - shared_address(unaligned)) + group * (BLOCK_BYTES / 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float inverse = 1.0f / (meeting.totals[0][r + 8 * h] + meeting.totals[1][r + 8 * h]);
#pragma unroll
            for (int c = 0; c < 32; c++)
                *(__half2*)(out + (r + 8 * h) * 512 + ((c ^ (r & 7)) << 4) + 4 * (lane & 3)) =
                    __floats2half2_rn(o[4 * c + 2 * h] * inverse, o[4 * c + 2 * h + 1] * inverse);
        }
        if (group) wait_for_threads(2, 128);
        else wait_for_threads(3, 128);
        for (int head = warp & 3; head < HEADS; head += 4)
            *(uint4*)(attended + at + (size_t)head * LATENT + group * (LATENT / 2) + 8 * lane) =
                *(const uint4*)(out + head * 512 + ((lane ^ (head & 7)) << 4));
    }
}
