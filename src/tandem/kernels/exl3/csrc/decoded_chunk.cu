// EXL3 products of a prefill chunk for every codebook and rate: fp16 rows, weights decoded into the matrix unit's
// registers, fp32 sums, the output rotated back before it is stored. Blocks of rows, the rotations before it and what
// follows are those of exl3_chunk.cu. A row's bits depend neither on the other rows nor on their number.
//
// Macro FORMS (decoded.cuh).

#include "decoded.cuh"

#define BM 128
#define BN 128
#define BK 32
#define STAGES 4
#define THREADS 128
#define SUM_PITCH 132

#define DECODE_TILES 4  // of 16 inputs, of a warp of decode_matrix
#define DECODE_PITCH 136

// The matrix between its rotations as fp16 [inputs, outputs], bit for bit what the format means. Grid: (outputs / 128,
// inputs / 64), 256 threads, a warp a column of tiles; form: a number of FORMS.
template <int CODEBOOK, int HALVES>
__device__ __forceinline__ void decode_tiles(__half (&rows)[16 * DECODE_TILES][DECODE_PITCH], const u32* matrix,
                                             int n_tiles) {
    using Tile = Ring<HALVES>;
    const Tile ring;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 loaded[DECODE_TILES][Tile::size];
#pragma unroll
    for (int t = 0; t < DECODE_TILES; t++)
        ring.load(loaded[t],
                  matrix + ((size_t)(blockIdx.y * DECODE_TILES + t) * n_tiles + blockIdx.x * 8 + warp) * Tile::words);
    const int row = 2 * (lane & 3), column = warp * 16 + (lane >> 2);
#pragma unroll
    for (int t = 0; t < DECODE_TILES; t++) {
        u32 a[Tile::size], b[4];
        ring.align(a, loaded[t]);
        decode<CODEBOOK, HALVES>(b, a);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const __half2 w = *(const __half2*)&b[i];
            const int at = 16 * t + row + 8 * (i & 1), c = column + 8 * (i >> 1);
            rows[at][c] = __low2half(w);
            rows[at + 1][c] = __high2half(w);
        }
    }
}

extern "C" __global__ void decode_matrix(const unsigned long long* trellis, __half* matrix, int outputs, int form) {
    __shared__ __align__(16) __half rows[16 * DECODE_TILES][DECODE_PITCH];
    wait_for_earlier();
    const u32* tiles = (const u32*)*trellis;
#define F(number, codebook, halves)                                 \
    case number:                                                    \
        decode_tiles<codebook, halves>(rows, tiles, outputs / 16);  \
        break;
    switch (form) { FORMS }
#undef F
    __syncthreads();
    const int at = (threadIdx.x & 15) * 8;
#pragma unroll
    for (int r = threadIdx.x >> 4; r < 16 * DECODE_TILES; r += 16)
        *(uint4*)(matrix + ((size_t)blockIdx.y * 16 * DECODE_TILES + r) * outputs + blockIdx.x * 128 + at) =
            *(const uint4*)&rows[r][at];
}

// A block's 128 rows times 128 outputs. Only the first M tiles of 16 rows are multiplied.
template <int CODEBOOK, int HALVES, int M>
__device__ __forceinline__ void multiply(float (&acc)[8][4][4], const u32* matrix, const __half* rows, __half* shared,
                                         int count, int inputs, int n_tiles, int n_tile) {
    using Tile = Ring<HALVES>;
    const Tile ring;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k_steps = inputs / BK;
    const u32* tiles = matrix + (size_t)(n_tile + 2 * warp) * Tile::words;

    // A stage: 128 rows of 32 values, 16-byte pieces swizzled so that eight rows lie in different banks.
    const auto place = [](int row, int piece) { return row * BK + (piece ^ ((row >> 1) & 3)) * 8; };
    const auto fetch = [&](int k) {
        __half* stage = shared + (k % STAGES) * BM * BK;
        if (k < k_steps) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int item = threadIdx.x + i * THREADS, row = item >> 2, piece = item & 3;
                const __half* from = rows + (size_t)min(row, count - 1) * inputs + k * BK + piece * 8;
                const unsigned to = (unsigned)__cvta_generic_to_shared(stage + place(row, piece));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    u32 next[2][2][Tile::size];  // two k-tiles, two n-tiles
    const auto load = [&](int k) {
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                ring.load(next[t][i], tiles + ((size_t)(2 * k + t) * n_tiles + i) * Tile::words);
    };
    load(0);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);

    for (int k = 0; k < k_steps; k++) {
        u32 a[2][2][Tile::size];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) ring.align(a[t][i], next[t][i]);
        if (k + 1 < k_steps) load(k + 1);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        fetch(k + STAGES - 1);
        const __half* stage = shared + (k % STAGES) * BM * BK;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            u32 b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) decode<CODEBOOK, HALVES>(b[i], a[t][i]);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const __half* own = stage + place(m * 16 + (lane & 15), 2 * t + (lane >> 4));
                u32 A[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(A[0]), "=r"(A[1]), "=r"(A[2]), "=r"(A[3])
                             : "r"((unsigned)__cvta_generic_to_shared(own)));
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

// As product_chunk of exl3_chunk.cu, except form_of and offsets, which are those of decoded_rows.cu.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    decoded_chunk(const unsigned long long* trellis, const int* form_of, const unsigned long long* offsets,
                  const __half* rotated, const int* block_matrix, const int* block_start, const int* block_end,
                  const int* block_count, const __half* svh0, const __half* svh1, void* y0, void* y1, int inputs,
                  int outputs0, int outputs1, int matrices, int pairs, int wide, int rows_first) {
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
    const int n_tiles = outputs / 16;
    __half* shared = (__half*)memory;
#define F(number, codebook, halves)                                                                              \
    case number:                                                                                                 \
        if (count <= 32) multiply<codebook, halves, 2>(acc, tiles, rows, shared, count, inputs, n_tiles, n / 16); \
        else multiply<codebook, halves, 8>(acc, tiles, rows, shared, count, inputs, n_tiles, n / 16);            \
        break;
    switch (form_of[matrix]) { FORMS }
#undef F

    float* sums = (float*)memory;  // [64][SUM_PITCH]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane & 3, r = lane >> 2;
    const __half* svh = (group ? svh1 : svh0) + (size_t)which * outputs + n + 4 * lane;
    const float* offset = (const float*)offsets[matrix];
    float scales[4], added[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        scales[i] = __half2float(svh[i]);
        added[i] = offset ? offset[n + 4 * lane + i] : 0.0f;
    }
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
            float v[4] = {loaded.x + added[0], loaded.y + added[1], loaded.z + added[2], loaded.w + added[3]};
            hadamard128(v);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] *= scales[i];
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
