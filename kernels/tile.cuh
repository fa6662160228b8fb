/*
 * tile.cuh - a matrix result in tiles: stored, quantized row-wise and column-wise, and summed over
 * rows, in one pass.
 *
 * A block of 256 threads computes 64 rows x 32 R columns; a thread R rows x 8 columns. With R = 4 a
 * warp accesses two runs of 256 bytes (BF16). Row-wise codes are stored in runs of 128 bytes, and
 * column-wise codes, transposed through 8192 bytes of shared memory, in runs of 64 bytes. Tiles are
 * numbered in bands of 4 tile rows, column by column, so that adjacent runs of a column are written
 * close in time.
 *
 * R = 1 is for results of fewer tiles than multiprocessors (_small_m): four times as many blocks,
 * each of which takes a quarter of the time. Its grid has two dimensions, and rows start on
 * vectors.
 */
#ifndef TE_TILE_CUH
#define TE_TILE_CUH

#include "kernels/dev.cuh"

#define TILE_BAND 4

template <int R> struct tile {
	static constexpr int COLS = 32 * R;
	static constexpr int TX = COLS / TE_V; /* threads across */

	int64_t r0, c0; /* the tile */
	int64_t r, c;	/* this thread's first element */
	int64_t rows, cols;
	int64_t end; /* end of the columns of this result; usually cols */
};

template <int R> DEV tile<R> tile_at(int64_t rows, int64_t cols, int64_t r0, int64_t c0)
{
	tile<R> t;

	t.r0 = r0;
	t.c0 = c0;
	t.r = r0 + threadIdx.x / t.TX * R;
	t.c = c0 + threadIdx.x % t.TX * TE_V;
	t.rows = rows;
	t.cols = cols;
	t.end = cols;
	return t;
}

/* the tile of that number, from 0 */
template <int R> DEV tile<R> tile_number(int64_t rows, int64_t cols, uint32_t number)
{
	const uint32_t width = tile<R>::COLS;
	const uint32_t nr = (uint32_t)((rows + TILE_ROWS - 1) / TILE_ROWS);
	const uint32_t nc = (uint32_t)((cols + width - 1) / width);
	const uint32_t band = number / (TILE_BAND * nc), in = number % (TILE_BAND * nc);
	const uint32_t height = min((uint32_t)TILE_BAND, nr - TILE_BAND * band);

	return tile_at<R>(rows, cols, (int64_t)(TILE_BAND * band + in % height) * TILE_ROWS,
			  (int64_t)(in / height) * width);
}

template <int R> DEV tile<R> tile_of_block(int64_t rows, int64_t cols)
{
	if (R == TILE_SMALL_R) /* no division to wait for */
		return tile_at<R>(rows, cols, (int64_t)blockIdx.y * TILE_ROWS,
				  (int64_t)blockIdx.x * tile<R>::COLS);
	return tile_number<R>(rows, cols, blockIdx.x);
}

/* the part of it within an input that ends earlier: rows of that are end elements wide */
template <int R> DEV tile<R> tile_unpadded(tile<R> t, int pad_rows, int pad_cols)
{
	t.rows -= pad_rows;
	t.end -= pad_cols;
	return t;
}

/* do all elements of the tile exist? Then, as in most tiles, elements need no checks. */
template <int R> DEV bool tile_is_full(const tile<R> *t)
{
	return t->r0 + TILE_ROWS <= t->rows && t->c0 + t->COLS <= t->end;
}

/* number of existing elements among this thread's TE_V elements of row i */
template <int R> DEV int tile_n(const tile<R> *t, int i)
{
	return t->r + i < t->rows ? clamp_int(t->end - t->c, 0, TE_V) : 0;
}

/* R x 8 elements; pitch is the row width of p. vec: rows start on vectors */
template <class T, int R> struct tile_raw {
	raw<T> row[R];
};

template <class T, bool ONCE = false, int R>
DEV tile_raw<T, R> tile_load(const tile<R> *t, const void *p, int64_t pitch, int64_t c, bool vec)
{
	tile_raw<T, R> x;

	if (vec && tile_is_full(t)) {
#pragma unroll
		for (int i = 0; i < R; i++)
			x.row[i] = load_raw<ONCE>((const T *)p + (t->r + i) * pitch + c);
		return x;
	}
	if (vec) {
#pragma unroll
		for (int i = 0; i < R; i++) {
			const T *row = (const T *)p + (t->r + i) * pitch + c;

			x.row[i] = tile_n(t, i) ? load_raw<ONCE>(row) : zero_raw<T>();
		}
		return x;
	}
#pragma unroll
	for (int i = 0; i < R; i++) {
		float v[TE_V];

		load_some((const T *)p + (t->r + i) * pitch + c, tile_n(t, i), v);
		x.row[i] = pack<T>(v);
	}
	return x;
}

/* shared memory of tile_put: codes by columns, and the tile as T for column sums */
template <int R> struct tile_codes {
	uint4 word[tile<R>::COLS * TILE_ROWS / 16];
	float amax[TILE_THREADS / 32]; /* a warp each */
};
template <class T, int R> struct tile_values {
	uint4 word[TILE_ROWS * tile<R>::COLS / TE_V * sizeof(T) / 2];
};

/*
 * Index of word w of column c, of 64 codes in 16 words. The swizzle spreads the low bits of the
 * thread over the banks, so that the 32 lanes of a warp write to 32 banks: tx = c / 8 gives bank
 * bit 4 and flips bits 1 to 3. With R = 1, the threads of four rows write a byte of a word each,
 * and a warp writes 8 words at a time.
 */
DEV int code_slot(int c, int w)
{
	const int tx = c / TE_V;

	return ((c & ~1) | ((c ^ tx) & 1)) * 16 + (w ^ (tx & 14));
}

/* tx: the vector of the tile's columns that the thread has */
DEV void codes_put(tile_codes<4> *s, const uint2 code[4], int tx = threadIdx.x % 16)
{
	const int ty = threadIdx.x / 16;
	uint32_t *word = (uint32_t *)s->word;
	uint32_t a[4], b[4];

#pragma unroll
	for (int half = 0; half < 2; half++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			a[i] = half ? code[i].y : code[i].x;
		transpose4(a, b);
#pragma unroll
		for (int j = 0; j < 4; j++)
			word[code_slot(tx * TE_V + half * 4 + j, ty)] = b[j];
	}
}

DEV void codes_put(tile_codes<1> *s, const uint2 code[1])
{
	const int tx = threadIdx.x % 4, r = threadIdx.x / 4;
	uint8_t *byte = (uint8_t *)s->word;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		byte[code_slot(tx * TE_V + e, r / 4) * 4 + r % 4] =
			(uint8_t)((e < 4 ? code[0].x : code[0].y) >> (e % 4 * 8));
}

/* col [cols, rows]: a thread stores 16 rows of a column if columns start on 16 bytes */
template <bool ONCE, int R>
DEV void codes_store(const tile_codes<R> *s, const tile<R> *t, uint8_t *col)
{
	const int nc = clamp_int(t->end - t->c0, 0, t->COLS);
	const int nr = clamp_int(t->rows - t->r0, 0, TILE_ROWS);

	if (t->rows % 16 == 0 && aligned(col)) {
#pragma unroll
		for (int k = threadIdx.x; k < t->COLS * 4; k += TILE_THREADS) {
			const int c = k / 4, chunk = k % 4, tx = c / TE_V;
			/* the swizzle permutes pairs of words: chunks by bits 2 and 3 ... */
			uint4 v = s->word[code_slot(c, chunk * 4) / 4];

			/* ... and the halves of a chunk by bit 1 */
			if (tx & 2)
				v = make_uint4(v.z, v.w, v.x, v.y);
			if (c < nc && chunk * 16 < nr)
				store_word<ONCE>((uint4 *)(col + (t->c0 + c) * t->rows + t->r0 +
							   chunk * 16),
						 v);
		}
		return;
	}
#pragma unroll 1
	for (int k = threadIdx.x; k < t->COLS * TILE_ROWS; k += TILE_THREADS) {
		const int c = k / TILE_ROWS, r = k % TILE_ROWS;

		if (c < nc && r < nr)
			col[(t->c0 + c) * t->rows + t->r0 + r] =
				((const uint8_t *)s->word)[code_slot(c, r / 4) * 4 + r % 4];
	}
}

/* outputs of a [rows, cols] result; vec as in tile_load() */
template <class T> struct tile_out {
	T *y; /* or NULL */
	struct te_k_q q;
	float *part; /* [TE_K_NPARTS(rows), part_pitch] or NULL */
	int64_t part_pitch;
	float scale;
	bool vec;
};

DEV float q_scale(const struct te_k_q *q)
{
	return q->row || q->col ? *q->scale : 1.0f;
}

/* once per launch; scale is from q_scale() */
DEV void q_scale_inv(const struct te_k_q *q, float scale)
{
	if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0 && (q->row || q->col))
		*q->scale_inv = __fdiv_rn(1.0f, scale);
}

/*
 * The part of tile_put() before its barrier. FULL: all elements exist, and rows start on vectors.
 */
template <bool FULL, bool ONCE, class T, int R>
DEV float tile_put_rows(const struct tile_out<T> *o, const tile<R> *t, float v[R][TE_V],
			uint2 code[R], tile_values<T, R> *values, float m)
{
	uint8_t *row = (uint8_t *)o->q.row;

#pragma unroll
	for (int i = 0; i < R; i++) {
		const int n = FULL ? TE_V : tile_n(t, i);
		const bool vec = FULL || (o->vec && n);
		const int64_t at = (t->r + i) * t->cols + t->c;
		raw<T> w;

		if (n < TE_V) {
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = e < n ? v[i][e] : 0.0f;
		}
		w = pack<T>(v[i]);
		unpack(w, v[i]);
		if (values && o->part)
			*(raw<T> *)&values->word[((t->r - t->r0 + i) * t->COLS + t->c - t->c0) /
						 TE_V * (sizeof(T) / 2)] = w;
		if (o->y && vec)
			store_raw(o->y + at, w);
		else if (o->y && n)
			store_some(o->y + at, n, v[i]);
		if (o->q.amax) {
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				m = amax_of(m, v[i][e]);
		}
		if (!row && !o->q.col)
			continue;
		code[i] = fp8x8(o->q.dtype, v[i], o->scale);
		if (row && vec) {
			store_word<ONCE>((uint2 *)(row + at), code[i]);
		} else if (row) {
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				if (e < n)
					row[at + e] = (uint8_t)((e < 4 ? code[i].x : code[i].y) >>
								(e % 4 * 8));
		}
	}
	return m;
}

/*
 * Store one tile of the result. Called by all threads of the block; the caller needs a barrier
 * before it reuses the shared memory. values: NULL if T is never summed. Elements beyond the
 * matrix are ignored. Returns the maximum of m and |v|; AMAX folds it into the result's amax too,
 * at a barrier that is needed anyway. ONCE: codes are evicted from L2 first.
 */
template <class T, int R, bool AMAX = false, bool ONCE = false>
DEV float tile_put(const struct tile_out<T> *o, const tile<R> *t, float v[R][TE_V],
		   tile_codes<R> *codes, tile_values<T, R> *values, float m)
{
	uint2 code[R];

	if (o->vec && tile_is_full(t))
		m = tile_put_rows<true, ONCE, T, R>(o, t, v, code, values, m);
	else
		m = tile_put_rows<false, ONCE, T, R>(o, t, v, code, values, m);
	if (o->q.col)
		codes_put(codes, code);
	if (AMAX && o->q.amax) {
		m = warp_amax(m);
		if (threadIdx.x % 32 == 0)
			codes->amax[threadIdx.x / 32] = m;
	}
	if (!o->q.col && !(values && o->part) && !(AMAX && o->q.amax))
		return m;
	__syncthreads();
	if (o->q.col)
		codes_store<ONCE>(codes, t, (uint8_t *)o->q.col);
	if (AMAX && o->q.amax && threadIdx.x == TILE_THREADS - 1) {
#pragma unroll
		for (int w = 0; w < TILE_THREADS / 32; w++)
			m = fmaxf(m, codes->amax[w]);
		atomic_amax(o->q.amax, m);
	}
	if (values && o->part && threadIdx.x < t->COLS && t->c0 + threadIdx.x < t->end) {
		const T *value = (const T *)values->word + threadIdx.x;
		float sum = 0.0f;

		/* rows beyond the end add +0, which changes no sum that started at +0 */
#pragma unroll 32
		for (int r = 0; r < TILE_ROWS; r++)
			sum = add(sum, to_float(value[r * t->COLS]));
		o->part[t->r0 / TILE_ROWS * o->part_pitch + t->c0 + threadIdx.x] = sum;
	}
	return m;
}

/* do rows of this width start on vectors in each of these arrays, of T or of codes? */
DEV bool tile_vec(int64_t cols, const void *x, const void *y, const struct te_k_q *q)
{
	return cols % TE_V == 0 && aligned(x) && aligned(y) && aligned(q->row);
}

#endif
