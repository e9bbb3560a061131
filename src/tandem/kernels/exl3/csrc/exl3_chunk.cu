// EXL3 (MUL1) products of a prefill chunk: fp16 activations, weights decoded straight into the matrix unit's
// registers (a tile lies in their order), fp32 sums, and the output rotated back before it is stored.
//
// Rows are pairs sorted by matrix; a block of 128 rows belongs to one matrix. Macros: BITS_A, BITS_B.

#include "exl3.cuh"

#ifndef BITS_A
#define BITS_A 3
#endif
#ifndef BITS_B
#define BITS_B BITS_A
#endif
#define BM 128
#define BN 128
#define BK 32
#define STAGES 4
#define THREADS 128
#define SUM_PITCH 132

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Position P's window as a fp16 bit pattern of 1024 + byte sum.
template <int BITS, int P>
__device__ __forceinline__ u32 level(const u32 (&a)[3]) {
    constexpr int word = (P * BITS) / 32, offset = (P * BITS) % 32;
    u32 window;
    if constexpr (offset + 16 <= 32) window = (a[word] >> (16 - offset)) & 0xffffu;
    else window = __funnelshift_l(a[word + 1], a[word], offset) >> 16;
    return __dp4a(window * 0x83DCD12Du, 0x01010101u, 0x6400u);
}

__device__ __forceinline__ u32 weights(u32 first, u32 second) {
    const u32 pair = __byte_perm(first, second, 0x5410);
    const u32 scale = 0x1EEE1EEEu, bias = 0xC931C931u;
    const __half2 w = __hfma2(*(const __half2*)&pair, *(const __half2*)&scale, *(const __half2*)&bias);
    return *(const u32*)&w;
}

// Only the first M tiles of 16 rows are multiplied.
template <int BITS, int M>
__device__ __forceinline__ void multiply(float (&acc)[8][4][4], const u32* matrix, const __half* rows, __half* shared,
                                         int count, int inputs, int n_tiles, int n_tile) {
    constexpr int WORDS = 8 * BITS;
    constexpr bool three = BITS >= 5;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int start = 8 * lane * BITS + BITS - 16, shift = start & 31;
    const int w0 = ((start >> 5) + WORDS) % WORDS, w1 = (w0 + 1) % WORDS, w2 = (w0 + 2) % WORDS;
    const u32* tiles = matrix + (size_t)(n_tile + 2 * warp) * WORDS;
    const size_t step = (size_t)n_tiles * WORDS;
    const int k_steps = inputs / BK;

    // A stage: 128 rows of 32 values, 16-byte pieces swizzled so that eight rows lie in different banks.
    const auto fetch = [&](int k) {
        __half* stage = shared + (k % STAGES) * BM * BK;
        if (k < k_steps) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int item = threadIdx.x + i * THREADS, row = item >> 2, piece = item & 3;
                const __half* from = rows + (size_t)min(row, count - 1) * inputs + k * BK + piece * 8;
                const unsigned to = (unsigned)__cvta_generic_to_shared(
                    stage + row * BK + ((piece ^ ((row >> 1) & 3)) * 8));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    u32 next[2][2][3];  // two k-tiles, two n-tiles
    const auto load = [&](int k) {
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32* at = tiles + (size_t)(2 * k + t) * step + i * WORDS;
                next[t][i][0] = __ldg(at + w0);
                next[t][i][1] = __ldg(at + w1);
                next[t][i][2] = three ? __ldg(at + w2) : 0u;
            }
    };
    load(0);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);

    for (int k = 0; k < k_steps; k++) {
        u32 a[2][2][3];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                a[t][i][0] = __funnelshift_l(next[t][i][1], next[t][i][0], shift);
                a[t][i][1] = __funnelshift_l(next[t][i][2], next[t][i][1], shift);
                a[t][i][2] = three ? next[t][i][2] << shift : 0u;
            }
        if (k + 1 < k_steps) load(k + 1);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        fetch(k + STAGES - 1);
        const __half* stage = shared + (k % STAGES) * BM * BK;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            u32 b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                b[i][0] = weights(level<BITS, 0>(a[t][i]), level<BITS, 1>(a[t][i]));
                b[i][1] = weights(level<BITS, 2>(a[t][i]), level<BITS, 3>(a[t][i]));
                b[i][2] = weights(level<BITS, 4>(a[t][i]), level<BITS, 5>(a[t][i]));
                b[i][3] = weights(level<BITS, 6>(a[t][i]), level<BITS, 7>(a[t][i]));
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int row = m * 16 + (lane & 15), piece = 2 * t + (lane >> 4);
                const unsigned from = (unsigned)__cvta_generic_to_shared(
                    stage + row * BK + ((piece ^ ((row >> 1) & 3)) * 8));
                u32 A[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(A[0]), "=r"(A[1]), "=r"(A[2]), "=r"(A[3])
                             : "r"(from));
                mma(acc[m][0], A, b[0][0], b[0][1]);
                mma(acc[m][1], A, b[0][2], b[0][3]);
                mma(acc[m][2], A, b[1][0], b[1][1]);
                mma(acc[m][3], A, b[1][2], b[1][3]);
            }
        }
    }
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
}

// rotated fp16 [groups, pairs, inputs]. Block b of rows: matrix block_matrix[b], pairs [block_start[b], block_end[b]);
// block_count int32 [1]. trellis, bits as for product_rows, [groups, matrices]; svh0, svh1: fp16 [matrices, outputs]
// of each group. -> y0, y1 fp16 or fp32 (wide) [pairs, outputs]. Grid: (n-blocks, row blocks, groups), or the first
// two exchanged (rows_first): neighbours in time then share a matrix instead of rows.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    product_chunk(const unsigned long long* trellis, const int* bits, const __half* rotated, const int* block_matrix,
                  const int* block_start, const int* block_end, const int* block_count, const __half* svh0,
                  const __half* svh1, void* y0, void* y1, int inputs, int outputs0, int outputs1, int matrices,
                  int pairs, int wide, int rows_first) {
    extern __shared__ __align__(128) unsigned char memory[];
    wait_for_earlier();
    const int group = blockIdx.z, outputs = group ? outputs1 : outputs0;
    const int block = rows_first ? blockIdx.x : blockIdx.y, n = (rows_first ? blockIdx.y : blockIdx.x) * BN;
    if (block >= *block_count || n >= outputs) return;
    const int which = block_matrix[block], matrix = group * matrices + which;
    const int first = block_start[block], count = block_end[block] - first;
    float acc[8][4][4];
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[m][i][j] = 0.0f;
    const __half* rows = rotated + ((size_t)group * pairs + first) * inputs;
    const u32* tiles = (const u32*)trellis[matrix];
    const bool of_a = BITS_A == BITS_B || bits[matrix] == BITS_A;
    if (of_a && count <= 32) multiply<BITS_A, 2>(acc, tiles, rows, (__half*)memory, count, inputs, outputs / 16, n / 16);
    else if (of_a) multiply<BITS_A, 8>(acc, tiles, rows, (__half*)memory, count, inputs, outputs / 16, n / 16);
    else multiply<BITS_B, 8>(acc, tiles, rows, (__half*)memory, count, inputs, outputs / 16, n / 16);

    float* sums = (float*)memory;  // [64][SUM_PITCH]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane & 3, r = lane >> 2;
    const __half* svh = (group ? svh1 : svh0) + (size_t)which * outputs + n + 4 * lane;
    const float signs[4] = {__half2float(svh[0]), __half2float(svh[1]), __half2float(svh[2]), __half2float(svh[3])};
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float* at = sums + (m * 16 + r) * SUM_PITCH + warp * 32 + i * 8 + 2 * q;
                const float* c = acc[half * 4 + m][i];
                *(float2*)at = make_float2(c[0], c[1]);
                *(float2*)(at + 8 * SUM_PITCH) = make_float2(c[2], c[3]);
            }
        __syncthreads();
        for (int row = warp; row < 64 && half * 64 + row < count; row += 4) {
            const float4 loaded = *(const float4*)(sums + row * SUM_PITCH + 4 * lane);
            float v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
            hadamard128(v);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] *= signs[i];
            const size_t out = (size_t)(first + half * 64 + row) * outputs + n + 4 * lane;
            if (wide) {
                *(float4*)((float*)(group ? y1 : y0) + out) = make_float4(v[0], v[1], v[2], v[3]);
            } else {
                __half2* to = (__half2*)((__half*)(group ? y1 : y0) + out);
                to[0] = __floats2half2_rn(v[0], v[1]);
                to[1] = __floats2half2_rn(v[2], v[3]);
            }
        }
        __syncthreads();
    }
}
