/* The sha256 (FIPS 180-4) of many pieces of one buffer: episodes of a few rows would take a call of Python's each; and
 * that of a buffer together with those of its blocks.
 *
 * Nothing here allocates, keeps state or starts a thread. files/sha256.py checks that the pieces lie in the buffer.
 */
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;
typedef uint32_t u32;
typedef unsigned char byte;
typedef void Compress(u32 state[8], const byte *data, i64 blocks);

#define API __attribute__((visibility("default")))
#define BLOCK 64
#define LANES 16

static const u32 INITIAL[8] = {
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const u32 K[64] = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline u32 read_be(const byte *p) { return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3]; }
static inline u32 rotated(u32 x, int n) { return x >> n | x << (32 - n); }

/* -- for any processor -- */

static void compress(u32 state[8], const byte *data, i64 blocks) {
  for (; blocks > 0; blocks--, data += BLOCK) {
    u32 w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    u32 e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++) w[t] = read_be(data + 4 * t);
    for (int t = 16; t < 64; t++) {
      u32 s0 = rotated(w[t - 15], 7) ^ rotated(w[t - 15], 18) ^ w[t - 15] >> 3;
      u32 s1 = rotated(w[t - 2], 17) ^ rotated(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    for (int t = 0; t < 64; t++) {
      u32 one = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
      u32 two = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

/* -- for x86 processors with the SHA extensions: Intel's, of 2013 -- */

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SHA __attribute__((target("sha,sse4.1,ssse3")))

typedef struct {
  __m128i abef, cdgh;
} State;

SHA static inline State loaded(const u32 state[8]) {
  const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);        /* CDAB */
  const __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B); /* EFGH */
  return (State){_mm_alignr_epi8(low, high, 8), _mm_blend_epi16(high, low, 0xF0)};
}

SHA static inline void store(State s, u32 state[8]) {
  const __m128i low = _mm_shuffle_epi32(s.abef, 0x1B), high = _mm_shuffle_epi32(s.cdgh, 0xB1); /* FEBA, DCHG */
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xF0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

SHA static inline void read_words(__m128i w[4], const byte *data) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll); /* big-endian words */
  for (int k = 0; k < 4; k++) w[k] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + k), order);
}

/* The words of four rounds, number ``k`` of 16, each with its constant; ``w`` holds the last 16 words. */
SHA static inline __m128i words_of(__m128i w[4], int k) {
  if (k >= 4) {
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[k % 4], w[(k + 1) % 4]),
                                _mm_alignr_epi8(w[(k + 3) % 4], w[(k + 2) % 4], 4));
    w[k % 4] = _mm_sha256msg2_epu32(sum, w[(k + 3) % 4]);
  }
  return _mm_add_epi32(w[k % 4], _mm_loadu_si128((const __m128i *)(K + 4 * k)));
}

SHA static inline void rounds(State *s, __m128i wk) {
  s->cdgh = _mm_sha256rnds2_epu32(s->cdgh, s->abef, wk);
  s->abef = _mm_sha256rnds2_epu32(s->abef, s->cdgh, _mm_shuffle_epi32(wk, 0x0E));
}

SHA static inline State sum_of(State s, State before) {
  return (State){_mm_add_epi32(s.abef, before.abef), _mm_add_epi32(s.cdgh, before.cdgh)};
}

SHA static void compress_sha_ni(u32 state[8], const byte *data, i64 blocks) {
  State s = loaded(state);
  for (; blocks > 0; blocks--, data += BLOCK) {
    const State before = s;
    __m128i w[4];
    read_words(w, data);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) rounds(&s, words_of(w, k));
    s = sum_of(s, before);
  }
  store(s, state);
}

/* Two pieces at a time: each round waits for the one before, and meanwhile the other piece has one. */
SHA static void compress_two(u32 one[8], const byte *first, u32 two[8], const byte *second, i64 blocks) {
  State s = loaded(one), t = loaded(two);
  for (; blocks > 0; blocks--, first += BLOCK, second += BLOCK) {
    const State s_before = s, t_before = t;
    __m128i v[4], w[4];
    read_words(v, first);
    read_words(w, second);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      rounds(&s, words_of(v, k));
      rounds(&t, words_of(w, k));
    }
    s = sum_of(s, s_before);
    t = sum_of(t, t_before);
  }
  store(s, one);
  store(t, two);
}

/* The same bytes into two states: their words, nearly half of the work, are made once. */
SHA static void compress_into_two(u32 one[8], u32 two[8], const byte *data, i64 blocks) {
  State s = loaded(one), t = loaded(two);
  for (; blocks > 0; blocks--, data += BLOCK) {
    const State s_before = s, t_before = t;
    __m128i w[4];
    read_words(w, data);
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const __m128i wk = words_of(w, k);
      rounds(&s, wk);
      rounds(&t, wk);
    }
    s = sum_of(s, s_before);
    t = sum_of(t, t_before);
  }
  store(s, one);
  store(t, two);
}

/* Sixteen pieces at a time, a word of each in a register: for processors with AVX-512, too. */

#define WIDE __attribute__((target("avx512f,avx512bw")))
#define XOR(x, y, z) _mm512_ternarylogic_epi32(x, y, z, 0x96)
#define SIGMA(x, i, j, k) XOR(_mm512_ror_epi32(x, i), _mm512_ror_epi32(x, j), _mm512_ror_epi32(x, k))
#define MIXED(x, i, j, k) XOR(_mm512_ror_epi32(x, i), _mm512_ror_epi32(x, j), _mm512_srli_epi32(x, k))

/* Make sixteen rows of sixteen words columns. */
WIDE static inline void transpose(__m512i r[LANES]) {
  __m512i s[LANES];
  for (int k = 0; k < LANES; k += 2) {
    s[k] = _mm512_unpacklo_epi32(r[k], r[k + 1]);
    s[k + 1] = _mm512_unpackhi_epi32(r[k], r[k + 1]);
  }
  for (int k = 0; k < LANES; k += 4)
    for (int j = 0; j < 2; j++) {
      r[k + 2 * j] = _mm512_unpacklo_epi64(s[k + j], s[k + j + 2]);
      r[k + 2 * j + 1] = _mm512_unpackhi_epi64(s[k + j], s[k + j + 2]);
    }
  for (int k = 0; k < 4; k++) {
    s[k] = _mm512_shuffle_i32x4(r[k], r[k + 4], 0x88);
    s[k + 4] = _mm512_shuffle_i32x4(r[k], r[k + 4], 0xdd);
    s[k + 8] = _mm512_shuffle_i32x4(r[k + 8], r[k + 12], 0x88);
    s[k + 12] = _mm512_shuffle_i32x4(r[k + 8], r[k + 12], 0xdd);
  }
  for (int k = 0; k < 8; k++) {
    r[k] = _mm512_shuffle_i32x4(s[k], s[k + 8], 0x88);
    r[k + 8] = _mm512_shuffle_i32x4(s[k], s[k + 8], 0xdd);
  }
}

/* Hash the first blocks of each piece; ``state`` has those of the pieces one behind the other. */
WIDE static void compress_lanes(u32 state[LANES][8], const byte *data, const i64 start[LANES], i64 blocks) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll));
  __m512i sum[8];
  for (int k = 0; k < 8; k++) sum[k] = _mm512_set1_epi32((int)INITIAL[k]);
  for (i64 at = 0; at < blocks * BLOCK; at += BLOCK) {
    __m512i w[16], a = sum[0], b = sum[1], c = sum[2], d = sum[3], e = sum[4], f = sum[5], g = sum[6], h = sum[7];
    for (int k = 0; k < LANES; k++)
      w[k] = _mm512_shuffle_epi8(_mm512_loadu_si512((const void *)(data + start[k] + at)), order);
    transpose(w);
#pragma GCC unroll 64
    for (int t = 0; t < 64; t++) {
      if (t >= 16) {
        const __m512i two = w[(t - 2) % 16], fifteen = w[(t - 15) % 16];
        const __m512i old = _mm512_add_epi32(w[t % 16], w[(t - 7) % 16]);
        w[t % 16] = _mm512_add_epi32(_mm512_add_epi32(old, MIXED(two, 17, 19, 10)), MIXED(fifteen, 7, 18, 3));
      }
      const __m512i word = _mm512_add_epi32(_mm512_add_epi32(h, _mm512_set1_epi32((int)K[t])), w[t % 16]);
      const __m512i choice = _mm512_add_epi32(SIGMA(e, 6, 11, 25), _mm512_ternarylogic_epi32(e, f, g, 0xca));
      const __m512i majority = _mm512_add_epi32(SIGMA(a, 2, 13, 22), _mm512_ternarylogic_epi32(a, b, c, 0xe8));
      const __m512i one = _mm512_add_epi32(word, choice);
      h = g, g = f, f = e, e = _mm512_add_epi32(d, one), d = c, c = b, b = a, a = _mm512_add_epi32(one, majority);
    }
    const __m512i more[8] = {a, b, c, d, e, f, g, h};
    for (int k = 0; k < 8; k++) sum[k] = _mm512_add_epi32(sum[k], more[k]);
  }
  for (int k = 0; k < 8; k++) {
    u32 word[LANES];
    _mm512_storeu_si512(word, sum[k]);
    for (int i = 0; i < LANES; i++) state[i][k] = word[i];
  }
  _mm256_zeroupper(); /* else each instruction for sha256 that follows takes a hundred times as long */
}

/* 1 with instructions for sha256; 2 with AVX-512, too, whose registers the system keeps. */
API int rlds_sha256_is_fast(void) {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 9) || !(c & 1u << 19)) return 0; /* SSSE3, SSE4.1 */
  const unsigned saves = c & 1u << 27;                                               /* OSXSAVE */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 29)) return 0;
  if (!saves || !(b & 1u << 16) || !(b & 1u << 30)) return 1; /* AVX512F, AVX512BW */
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & 0xe6) == 0xe6 ? 2 : 1;
}
#else
#define compress_sha_ni compress
#define compress_two(one, first, two, second, blocks) (compress(one, first, blocks), compress(two, second, blocks))
#define compress_into_two(one, two, data, blocks) (compress(one, data, blocks), compress(two, data, blocks))
#define compress_lanes(state, data, start, blocks) ((void)0)
API int rlds_sha256_is_fast(void) { return 0; }
#endif

/* Write the hash of ``size`` bytes, of which ``state`` has all but the last ``left``, from ``data`` on. */
static void finish(Compress *add, u32 state[8], const byte *data, i64 left, i64 size, byte *out) {
  const i64 whole = left / BLOCK, rest = left % BLOCK, ends = rest < 56 ? 1 : 2; /* blocks */
  byte end[2 * BLOCK] = {0};
  add(state, data, whole);
  if (rest) memcpy(end, data + whole * BLOCK, (size_t)rest);
  end[rest] = 0x80;
  for (int k = 0; k < 8; k++) end[ends * BLOCK - 1 - k] = (byte)((u64)size * 8 >> 8 * k);
  add(state, end, ends);
  for (int k = 0; k < 32; k++) out[k] = (byte)(state[k / 4] >> (24 - 8 * (k % 4)));
}

/* Return the number of blocks that the next pieces have in common; 0 if others have twice as many. */
static i64 common(const i64 *size, int pieces) {
  i64 least = size[0], most = size[0];
  for (int k = 1; k < pieces; k++) {
    least = size[k] < least ? size[k] : least;
    most = size[k] > most ? size[k] : most;
  }
  return most > 2 * least ? 0 : least / BLOCK;
}

/* Hash ``size[i]`` bytes from ``data[start[i]]`` on into ``out[32 * i]``, for i below n; ``fast``: as is_fast says. */
API void rlds_sha256(const byte *data, const i64 *start, const i64 *size, i64 n, int fast, byte *out) {
  Compress *const add = fast ? compress_sha_ni : compress;
  int pieces;
  for (i64 i = 0; i < n; i += pieces) {
    u32 state[LANES][8];
    i64 done = 0;
    pieces = fast > 1 && n - i >= LANES && (done = common(size + i, LANES)) ? LANES : n - i > 1 ? 2 : 1;
    for (int k = 0; k < pieces; k++) memcpy(state[k], INITIAL, sizeof INITIAL);
    if (pieces == LANES)
      compress_lanes(state, data, start + i, done);
    else if (fast && pieces == 2) {
      done = (size[i] < size[i + 1] ? size[i] : size[i + 1]) / BLOCK;
      if (done) compress_two(state[0], data + start[i], state[1], data + start[i + 1], done);
    }
    for (i64 k = 0, at = done * BLOCK; k < pieces; k++)
      finish(add, state[k], data + start[i + k] + at, size[i + k] - at, size[i + k], out + 32 * (i + k));
  }
}

/* -- all of what comes in order, together with its blocks; where sha256 is fast -- */

API void rlds_sha256_begin(u32 all[8]) { memcpy(all, INITIAL, sizeof INITIAL); }

/* Add n pieces of ``size`` bytes, a multiple of 64, that lie end to end, to ``all``; hash each into ``out[32 * i]``. */
API void rlds_sha256_add(u32 all[8], const byte *data, i64 size, i64 n, byte *out) {
  for (i64 i = 0; i < n; i++, data += size) {
    u32 own[8];
    memcpy(own, INITIAL, sizeof INITIAL);
    compress_into_two(all, own, data, size / BLOCK);
    finish(compress_sha_ni, own, data, 0, size, out + 32 * i);
  }
}

/* Write the hash of ``size`` bytes, of which ``all`` has all but the last ``left``. */
API void rlds_sha256_end(u32 all[8], const byte *data, i64 left, i64 size, byte *out) {
  finish(compress_sha_ni, all, data, left, size, out);
}
