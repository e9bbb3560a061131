// Absorbed latent attention of a prefill chunk's rows on sm_90: 64 heads of one row over the tokens it may see.
//
// Two warp groups multiply, a third gathers tokens. Of every 128 tokens each of the two scores 64 and both then add
// all 128 to their half of the latent values; maxima and weights pass between them through shared memory. A row's
// tokens are cut at fixed places: its bits depend on no other row. Macros: PAGE and POOL, in tokens; Q8: latents are
// codes of 8 bits in the rotated basis (latent_q8), which queries enter and results leave in here.

#include <cuda_fp16.h>

#include "../../csrc/hopper.cuh"
#include "../../csrc/overlap.cuh"

#ifndef PAGE
#define PAGE 256
#endif
#ifndef POOL
#define POOL 4
#endif
#ifndef Q8
#define Q8 0
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
#define MULTIPLIER_REGISTERS (Q8 ? 216 : 224)
#define GATHER_REGISTERS (Q8 ? 72 : 56)
#define QUANT_GROUP 32
#define QUANT_NORM 0.17677669529663687f  // 1 / sqrt(32)

#if Q8
typedef signed char Cached;
#else
typedef __half Cached;
#endif

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
__device__ __forceinline__ void gather_queries(const __half* q, unsigned queries, unsigned place, Meeting& meeting) {
    const int piece = threadIdx.x & 7, own = (threadIdx.x - MULTIPLIERS) >> 3;
#pragma unroll
    for (int r = 0; r < HEADS / 16; r++)
#pragma unroll
        for (int p = 0; p < PANELS; p++)
            copy_16(queries + p * PANEL_BYTES + r * 2048 + place,
                    q + (size_t)(16 * r + own) * LATENT + p * 64 + piece * 8);
    arrive_after_copies(&meeting.queries);
}

// What a thread fetches of a token of 512 codes: the columns 128 i + 16 piece + 0..15, and two of the 16 scales.
struct Codes {
    uint4 data[4];
    u32 scales;

    __device__ __forceinline__ void load(const Cached* cache, const __half* token_scales, size_t token, int piece) {
#pragma unroll
        for (int i = 0; i < 4; i++) data[i] = *(const uint4*)(cache + token * LATENT + 128 * i + 16 * piece);
        scales = *(const u32*)(token_scales + token * (LATENT / QUANT_GROUP) + 2 * piece);
    }
    // As fp16, to the token's line of each panel. Threads 4..7 of a row begin with the other half, for the banks.
    __device__ __forceinline__ void store(unsigned line, int piece, int row) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 both = __shfl_sync(0xffffffffu, scales, 2 * i + (piece >> 2), 8);
            const u32 scale = __byte_perm(both, both, piece & 2 ? 0x3232 : 0x1010);
            const u32 words[4] = {data[i].x, data[i].y, data[i].z, data[i].w};
            u32 halves[8];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 shifted = words[j] ^ 0x80808080u;  // 128 + code
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const u32 raised = __byte_perm(shifted, 0x64646464u, k ? 0x4342 : 0x4140);  // fp16: 1024 + 128 + code
                    const u32 origin = 0x64806480u;
                    const __half2 code = __hsub2(*(const __half2*)&raised, *(const __half2*)&origin);
                    const __half2 value = __hmul2(code, *(const __half2*)&scale);
                    halves[2 * j + k] = *(const u32*)&value;
                }
            }
            const unsigned panel = line + (2 * i + (piece >> 2)) * PANEL_BYTES;
#pragma unroll
            for (int turn = 0; turn < 2; turn++) {
                const bool second = turn ^ (piece >> 2);
                const unsigned to = panel + (((2 * (piece & 3) + second) ^ (row & 7)) << 4);
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(second ? halves[4] : halves[0]),
                             "r"(second ? halves[5] : halves[1]), "r"(second ? halves[6] : halves[2]),
                             "r"(second ? halves[7] : halves[3])
                             : "memory");
            }
        }
    }
};

__device__ __forceinline__ void gather(const __half* q, const Cached* cache, const __half* scales, const Seen& seen,
                                       unsigned queries, unsigned blocks, Meeting& meeting) {
    const int thread = threadIdx.x - MULTIPLIERS, piece = thread & 7, own = thread >> 3;
    const unsigned place = own * 128 + ((piece ^ (own & 7)) << 4);
    gather_queries(q, queries, place, meeting);
    const int slices = (seen.length + 2 * TOKENS - 1) / (2 * TOKENS) * (2 * TOKENS / SLICE), last = seen.length - 1;
    // Past the end: the last token, whose weight will be 0.
    const auto token = [&](int slice) { return seen.token(min(slice * SLICE + own, last)); };
#if Q8
    Codes ahead[2];
#pragma unroll
    for (int h = 0; h < 2; h++) ahead[h].load(cache, scales, token(h), piece);
    size_t next = token(2);
    for (int pair = 0; pair < slices; pair += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int s = pair + h, slot = s & 7;
            if (s >= 8) wait(&meeting.empty[slot], (s / 8 - 1) & 1);
            ahead[h].store(blocks + (slot >> 2) * BLOCK_BYTES + (slot & 3) * 2048 + own * 128, piece, own);
            arrive(&meeting.full[slot >> 2]);
            if (s + 2 < slices) ahead[h].load(cache, scales, next, piece);
            next = token(s + 3);
        }
    }
#else
    size_t next = token(0);
    for (int s = 0; s < slices; s++) {
        const int slot = s & 7;
        const __half* from = cache + next * LATENT + piece * 8;
        next = token(s + 1);
        if (s >= 8) wait(&meeting.empty[slot], (s / 8 - 1) & 1);
        const unsigned to = blocks + (slot >> 2) * BLOCK_BYTES + (slot & 3) * 2048 + place;
#pragma unroll
        for (int p = 0; p < PANELS; p++) copy_16(to + p * PANEL_BYTES, from + p * 64);
        arrive_after_copies(&meeting.full[slot >> 2]);
    }
#endif
}

// Levels of a rotation whose both values a thread holds, without the norm.
template <int N>
__device__ __forceinline__ void hadamard_of_own(float (&v)[N]) {
#pragma unroll
    for (int bit = 1; bit < N; bit <<= 1)
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i & bit) continue;
            const float a = v[i], b = v[i | bit];
            v[i] = a + b;
            v[i | bit] = a - b;
        }
}

// The multiplying threads: queries into the basis of the codes, in place, a group of 32 values at a time.
__device__ __forceinline__ void rotate_queries(unsigned char* queries) {
    for (int group = threadIdx.x / HEADS; group < LATENT / QUANT_GROUP; group += MULTIPLIERS / HEADS) {
        const int row = threadIdx.x % HEADS;
        unsigned char* line = queries + group / 2 * PANEL_BYTES + row * 128;
        float v[QUANT_GROUP];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint4 packed = *(const uint4*)(line + (((group % 2 * 4 + p) ^ (row & 7)) << 4));
            const __half2* halves = (const __half2*)&packed;
#pragma unroll
            for (int i = 0; i < 4; i++) *(float2*)(v + 8 * p + 2 * i) = __half22float2(halves[i]);
        }
        hadamard_of_own(v);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            __half2 halves[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                halves[i] = __floats2half2_rn(v[8 * p + 2 * i] * QUANT_NORM, v[8 * p + 2 * i + 1] * QUANT_NORM);
            *(uint4*)(line + (((group % 2 * 4 + p) ^ (row & 7)) << 4)) = *(const uint4*)halves;
        }
    }
    show_to_matrix_unit();
    wait_for_threads(1, MULTIPLIERS);
}

// Eight results of a lane out of that basis; four neighbouring lanes hold a group.
__device__ __forceinline__ uint4 rotated_back(const uint4& packed) {
    float v[8];
    const __half2* halves = (const __half2*)&packed;
#pragma unroll
    for (int i = 0; i < 4; i++) *(float2*)(v + 2 * i) = __half22float2(halves[i]);
    hadamard_of_own(v);
#pragma unroll
    for (int step = 1; step < 4; step <<= 1) {
        const float sign = threadIdx.x & step ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fmaf(sign, v[i], __shfl_xor_sync(0xffffffffu, v[i], step));
    }
    __half2 out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = __floats2half2_rn(v[2 * i] * QUANT_NORM, v[2 * i + 1] * QUANT_NORM);
    return *(const uint4*)out;
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

// q fp16 [rows, heads, 512], cache fp16 [tokens, 512], or (Q8) int8 with scales fp16 [tokens, 16], positions and run_of_row int32 [rows], tables int32 [runs,
// max_pages], chosen int32 [rows, count] (read for rows that see more than `count` pools). Scores are q . c times
// scale / ln 2. -> attended fp16 [rows, heads, 512]. Grid: (heads / 64, rows), THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_chunk(const __half* q, const Cached* cache, const __half* scales, const int* positions,
                 const int* run_of_row, const int* tables, const int* chosen, __half* attended, int heads,
                 int max_pages, int count, float scale) {
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
        gather(q + at, cache, scales, seen, queries, blocks, meeting);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIER_REGISTERS));
        const int r = 16 * (warp & 3) + (lane >> 2), pairs = (seen.length + 2 * TOKENS - 1) / (2 * TOKENS);
        const unsigned own_weights = weights + group * PANEL_BYTES + r * 128 + 4 * (lane & 3);
        float o[128], top[2] = {LEAST, LEAST}, total[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 128; i++) o[i] = 0.0f;
        wait(&meeting.queries, 0);
#if Q8
        rotate_queries(unaligned + (queries - shared_address(unaligned)));
#endif
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
        for (int head = warp & 3; head < HEADS; head += 4) {
            uint4 own = *(const uint4*)(out + head * 512 + ((lane ^ (head & 7)) << 4));
#if Q8
            own = rotated_back(own);
#endif
            *(uint4*)(attended + at + (size_t)head * LATENT + group * (LATENT / 2) + 8 * lane) = own;
        }
    }
}
