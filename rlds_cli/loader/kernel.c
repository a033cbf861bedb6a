/* The loader's core: draw sample numbers, locate their rows, copy the rows. And a tree of sums, for priorities.
 *
 * Nothing here allocates, keeps state or starts a thread. Every number is 64 bits wide, so that a struct has one
 * layout everywhere. kernel.py makes the structs, owns what they point to, and checks every table once: rows of an
 * episode lie in [start, start + steps], and columns have at least so many rows. What cannot be known then is checked
 * here, sample by sample. Slow references in plain Python: tests/support/kernel_reference.py.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;
typedef uint32_t u32;
typedef unsigned char byte;

#define API __attribute__((visibility("default")))
#define EACH for (i64 i = 0; i < n; i++)
#define TILE 256 /* samples at a time: their numbers stay in the first cache */
#define AHEAD 64 /* samples that are dealt to slots, while the rows of as many are fetched into the second cache */
#define MANY (32 << 10) /* bytes of a column of a slice that are not asked for ahead */
#define ROOT_OF_HALF 0x3F3504F3 /* the bits of a float */
#define NEAR 512 /* bytes of a value of a sample that is written beside others first, if samples go to slots */

static inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 clip(i64 x, i64 low, i64 high) { /* low where the range is empty */
  x = x > high ? high : x;
  return x < low ? low : x;
}

/* -- random numbers: numpy.random.Philox(key=(seed, key), counter=(block, salt, 0, 0)), Salmon et al. 2011 -- */

typedef struct {
  u64 seed, key, salt;
} Stream;

static inline void multiply(u64 a, u64 b, u64 *high, u64 *low) {
  unsigned __int128 product = (unsigned __int128)a * b;
  *high = (u64)(product >> 64), *low = (u64)product;
}

/* Some blocks, 4 words each; two at a time take two thirds of the time, since neither waits for the other. */
static inline __attribute__((always_inline)) void philox(const Stream *s, u64 block, const int blocks, u64 *out) {
  u64 a[2], b[2], c[2] = {0}, d[2] = {0}, k0 = s->seed, k1 = s->key;
  for (int j = 0; j < blocks; j++) a[j] = block + 1 + (u64)j, b[j] = s->salt + (a[j] == 0); /* NumPy counts, then draws */
  for (int round = 0; round < 10; round++) {
    for (int j = 0; j < blocks; j++) {
      u64 high0, low0, high1, low1;
      multiply(0xD2E7470EE14C6C93ull, a[j], &high0, &low0);
      multiply(0xCA5A826395121157ull, c[j], &high1, &low1);
      a[j] = high1 ^ b[j] ^ k0, b[j] = low1, c[j] = high0 ^ d[j] ^ k1, d[j] = low0;
    }
    k0 += 0x9E3779B97F4A7C15ull, k1 += 0xBB67AE8584CAA73Bull;
  }
  for (int j = 0; j < blocks; j++) out[4 * j] = a[j], out[4 * j + 1] = b[j], out[4 * j + 2] = c[j], out[4 * j + 3] = d[j];
}

/* Words number first, first + 1, ... of a stream. */
API void rlds_words(const Stream *s, i64 first, i64 n, u64 *out) {
  u64 four[4], block = ~0ull;
  EACH {
    u64 at = (u64)(first + i);
    if (at / 4 != block) philox(s, block = at / 4, 1, four);
    out[i] = four[at % 4];
  }
}

/* Sample numbers: a list, or first, first + step, ... where the list is NULL. */
typedef struct {
  const i64 *list;
  i64 first, step;
} Numbers;

static inline i64 number_at(const Numbers *p, i64 i) {
  return p->list ? p->list[i] : (i64)((u64)p->first + (u64)i * (u64)p->step);
}

/* Draws in [0, 1) times scale, for each sample number. */
API void rlds_uniform(const Stream *s, const Numbers *p, i64 n, double scale, double *out) {
  const double factor = scale * 0x1p-53;
  u64 word[8], block = ~0ull;
  i64 done = 0;
  if (!p->list && p->step == 1 && p->first % 4 == 0)
    for (; done + 8 <= n; done += 8) {
      philox(s, (u64)(p->first + done) / 4, 2, word);
      for (int k = 0; k < 8; k++) out[done + k] = (double)(word[k] >> 11) * factor;
    }
  for (i64 i = done; i < n; i++) {
    u64 at = (u64)number_at(p, i);
    if (at / 4 != block) philox(s, block = at / 4, 1, word);
    out[i] = (double)(word[at % 4] >> 11) * factor;
  }
}

/* Integers in [0, limit). */
API void rlds_below(const Stream *s, const Numbers *p, i64 n, i64 limit, i64 *out) {
  double drawn[TILE];
  for (i64 done = 0; done < n; done += TILE) {
    const Numbers part = {p->list ? p->list + done : 0, number_at(&(Numbers){0, p->first, p->step}, done), p->step};
    const i64 m = least(TILE, n - done);
    rlds_uniform(s, &part, m, (double)limit, drawn);
    for (i64 i = 0; i < m; i++) out[done + i] = (i64)drawn[i];
  }
}

/* -- a permutation of [0, total): Feistel over Z_a x Z_b, again where a value falls outside (Black, Rogaway 2002) -- */

static inline u32 scatter(u32 x) {
  x *= 0x9E3779B1u, x ^= x >> 15, x *= 0x85EBCA77u, x ^= x >> 13;
  return x;
}

static inline u32 add(u32 x, u32 f, u32 m, u64 inverse) { /* (x + f) mod m, x below m; remainder after Lemire 2019 */
  u32 sum = x + (u32)(((unsigned __int128)(inverse * f) * m) >> 64);
  return sum - (sum >= m ? m : 0);
}

typedef struct {
  u64 a, b, inverse_a, inverse_b;
  const u32 *keys;
  i64 rounds;
} Feistel;

/* Takes each of x [n], at most TILE, once through all rounds: round by round, since numbers do not wait for others. */
static void feistel(const Feistel *f, u64 *x, i64 n) {
  u32 left[TILE], right[TILE];
  EACH left[i] = (u32)(x[i] / f->b), right[i] = (u32)(x[i] % f->b);
  for (i64 round = 0; round < f->rounds; round++) {
    const u32 key = f->keys[round];
    if (round % 2) EACH right[i] = add(right[i], scatter(left[i] ^ key), (u32)f->b, f->inverse_b);
    else EACH left[i] = add(left[i], scatter(right[i] ^ key), (u32)f->a, f->inverse_a);
  }
  EACH x[i] = (u64)left[i] * f->b + right[i];
}

/* Positions must lie in [0, total), and total in [1, a * b]. Returns the place of one that does not, or -1. */
API i64 rlds_permute(const Numbers *p, i64 n, i64 total, i64 a, i64 b, const u32 *keys, i64 rounds, i64 *out) {
  const Feistel f = {(u64)a, (u64)b, ~0ull / (u64)a + 1, ~0ull / (u64)b + 1, keys, rounds};
  for (i64 done = 0; done < n; done += TILE) {
    const i64 m = least(TILE, n - done);
    u64 x[TILE];
    for (i64 i = 0; i < m; i++) {
      x[i] = (u64)number_at(p, done + i);
      if (x[i] >= (u64)total) return done + i; /* from there the way may never lead back */
    }
    feistel(&f, x, m);
    for (i64 i = 0; i < m; i++) {
      while (x[i] >= (u64)total) feistel(&f, x + i, 1);
      out[done + i] = (i64)x[i];
    }
  }
  return -1;
}

/* -- locate: the interval of a number, by the first interval of each equal slice of the range (a guide table) -- */

typedef struct {
  i64 count, total, shift; /* intervals; numbers; log2 of the numbers in a slice */
  const i64 *bounds;       /* [count + 1] */
  const int32_t *guide;    /* [((total - 1) >> shift) + 1] */
} Prefix;

/* Numbers must lie in [0, total). Returns the place of one that does not, or -1. */
API i64 rlds_find(const Prefix *p, const i64 *number, i64 n, i64 *interval, i64 *within) {
  EACH if ((u64)number[i] >= (u64)p->total) return i;
  for (i64 done = 0; done < n; done += TILE) {
    const i64 m = least(TILE, n - done), *x = number + done;
    i64 *e = interval + done;
    for (i64 i = 0; i < m; i++) __builtin_prefetch(p->guide + (x[i] >> p->shift));
    for (i64 i = 0; i < m; i++) e[i] = p->guide[x[i] >> p->shift], __builtin_prefetch(p->bounds + e[i] + 1);
    for (i64 i = 0; i < m; i++) {
      i64 at = e[i];
      for (int tries = 8; p->bounds[at + 1] <= x[i] && tries; tries--) at++;
      if (p->bounds[at + 1] <= x[i]) { /* many short intervals in a slice */
        i64 low = at, high = p->count - 1;
        while (low < high) {
          i64 middle = (low + high) / 2;
          if (p->bounds[middle + 1] <= x[i]) low = middle + 1; else high = middle;
        }
        at = low;
      }
      e[i] = at, within[done + i] = x[i] - p->bounds[at];
    }
  }
  return -1;
}

static inline i64 slice_of(double u, i64 slices) {
  const double at = u * (double)slices;
  return at >= 0 && at < (double)slices ? (i64)at : slices - 1;
}

/* The item that each draw u [n] in [0, 1) falls on: ends [count] are running sums of weights, with a guide table. */
API void rlds_fall(const double *ends, i64 count, const int32_t *guide, i64 slices, const double *u, i64 n, i64 *out) {
  const double total = ends[count - 1];
  EACH __builtin_prefetch(guide + slice_of(u[i], slices));
  EACH out[i] = clip(guide[slice_of(u[i], slices)], 0, count - 1), __builtin_prefetch(ends + out[i]);
  EACH {
    const double at = u[i] * total;
    i64 item = out[i];
    for (int tries = 8; item < count - 1 && ends[item] <= at && tries; tries--) item++;
    if (ends[item] <= at) {
      i64 low = item, high = count - 1;
      while (low < high) {
        i64 middle = (low + high) / 2;
        if (ends[middle] <= at) low = middle + 1; else high = middle;
      }
      item = low;
    }
    out[i] = item;
  }
}

/* -- gather: number -> row -> copy -- */

typedef struct {
  i64 episodes, stride, offset;                              /* a window starts at step number * stride + offset */
  const i64 *start, *steps, *transitions, *observed; /* [episodes] */
} Windows;

/* The first step of window `number`. Kept so far from the ends of the numbers that sums with lengths fit. */
static inline i64 first_step(const Windows *w, i64 number) {
  return clip((i64)((u64)number * (u64)w->stride + (u64)w->offset), -(1ll << 61), 1ll << 61);
}

/* The row of the first step of a window that is inside its episode. */
static inline i64 first_row(const Windows *w, i64 episode, i64 number) {
  return w->start[episode] + clip(first_step(w, number), 0, w->steps[episode] - 1);
}

/* Where a column's rows are. */
enum {
  HERE,      /* at the step */
  LAST,      /* at the last step summed */
  NEIGHBOUR, /* `amount` steps after the last one, or before the step */
  OFFSETS,   /* at `amount` offsets from the step, before rows `limit` of the episode */
  GIVEN,     /* given for each sample */
  EPISODE,   /* the number of the episode */
  SPAN,      /* the number of steps summed */
  SAMPLE     /* the number of the sample */
};

/* What is written of each row. */
enum { COPY, NARROW, WIDEN, EITHER, SUM, ROW, INSIDE, STEP, INDEX, OBSERVED, DISTANCE, ZERO };

typedef struct {
  i64 value, place, amount;
  const char *base;          /* value of row 0; NULL: given in this call */
  i64 stride, size;          /* bytes from row to row; bytes of a value in the output */
  i64 count;                 /* numbers in a value */
  i64 given;                 /* which of the arrays given in this call; -1 for none */
  i64 doubles;               /* SUM: bit 0 rewards, bit 1 sums are double */
  i64 mask, blank;           /* INSIDE: bit 0 of the window, bit 1 of the place; write zeros where not inside */
  const char *other;         /* EITHER: the other flag; SUM: powers of the discount */
  const i64 *offsets, *limit;
  const double *shift; /* [count], or NULL: values become (float)(x - shift) / scale */
  const float *scale;
} Column;

typedef struct {
  u64 base; /* an address, which may lie before the column: nothing is read there */
  i64 stride, place, amount, given, size;
} Fetch; /* bytes of every row that several columns read together */

static inline void prefetch(u64 at) { __builtin_prefetch((const void *)(uintptr_t)at, 0, 2); } /* to the second cache */

typedef struct {
  Windows windows;
  i64 columns, fetches;
  const Column *column;
  const Fetch *fetch;
  i64 rows, n_step; /* rows of the columns; steps that a sample sums at most; 0: each sample is one step */
  const byte *terminated, *truncated; /* flags that end a sum; NULL: only the last transitions have any */
  i64 stride;                         /* bytes from flag to flag */
  i64 pad;                            /* where the steps of a window that lie outside its episode go */
} Plan;

enum { IN_PLACE, LEFT, RIGHT };

typedef struct {
  const i64 *episode, *number; /* [n] */
  const void *const *given;    /* arrays [n] */
  i64 length;                  /* steps of a window; 0: one, without an axis */
} Samples;

typedef struct {
  i64 sample; /* number of the first among all samples; all are of this one if `lone` */
  i64 lone, low, high; /* entries [low, high) are inside their episode */
  i64 ahead;           /* rows from a lone sample to the next one */
  i64 episode[TILE], step[TILE], span[TILE], row[TILE];
} Tile;

/* Rows of entries [from, from + n), and whether they are real. `j` of OFFSETS is that of the offset. */
static const i64 *rows_of(const Plan *p, const Samples *s, const Tile *t, i64 place, i64 amount, i64 given, i64 from,
                          i64 n, i64 *row) {
  const Windows *w = &p->windows;
  switch (place) {
    case HERE: return t->row + from;
    case LAST: EACH row[i] = t->row[from + i] + t->span[from + i] - 1; break;
    case NEIGHBOUR:
      EACH {
        const i64 e = t->episode[from + i], at = t->step[from + i] + amount + (amount > 0 ? t->span[from + i] - 1 : 0);
        row[i] = w->start[e] + clip(at, 0, w->steps[e] - 1);
      }
      break;
    case GIVEN: EACH row[i] = ((const i64 *)s->given[given])[t->lone ? t->sample : t->sample + from + i]; break;
    case EPISODE: return t->episode + from;
    case SPAN: return t->span + from;
    case SAMPLE: EACH row[i] = t->lone ? t->sample : t->sample + from + i; break;
  }
  return row;
}

static void fetch(const Plan *p, const Samples *s, const Tile *t, i64 from, i64 n) {
  i64 scratch[TILE];
  if (n > 0)
    for (const Fetch *f = p->fetch; f < p->fetch + p->fetches; f++) {
      const i64 *row = rows_of(p, s, t, f->place, f->amount, f->given, from, n, scratch);
      EACH {
        const u64 at = f->base + (u64)row[i] * (u64)f->stride, end = at + (u64)f->size;
        for (u64 line = at & ~63ull; line < end; line += 64) prefetch(line);
      }
    }
}

static inline void move(char *to, const char *from, i64 size) {
  if (size >= 16) {
    i64 at = 0;
    for (; at + 16 <= size; at += 16) memcpy(to + at, from + at, 16);
    if (at < size) memcpy(to + size - 16, from + size - 16, 16);
  } else if (size >= 8) {
    memcpy(to, from, 8), memcpy(to + size - 8, from + size - 8, 8);
  } else if (size >= 4) {
    memcpy(to, from, 4), memcpy(to + size - 4, from + size - 4, 4);
  } else {
    for (i64 at = 0; at < size; at++) to[at] = from[at];
  }
}

/* Copies bytes, and asks for as many that lie `ahead` bytes further on, line by line: while many are asked for at once,
 * or none, copies wait for memory. Of many bytes the processor foresees what is next. */
static void copy_ahead(char *to, const char *from, i64 size, i64 ahead) {
  if (size > MANY) {
    memcpy(to, from, (size_t)size);
    return;
  }
  i64 at = 0;
  for (; at + 64 <= size; at += 64) prefetch((u64)(uintptr_t)from + (u64)(at + ahead)), memcpy(to + at, from + at, 64);
  prefetch((u64)(uintptr_t)from + (u64)(size - 1 + ahead));
  move(to + at, from + at, size - at);
}

/* Sizes of flags, numbers and the most common observations, which compilers unroll. */
#define SIZES FIXED(1) FIXED(4) FIXED(8) FIXED(12) FIXED(16) FIXED(24) FIXED(32) FIXED(44) FIXED(68)
#define FIXED(bytes) case bytes: EACH memcpy(out + i * bytes, base + row[i] * stride, bytes); return;

static void copy(const char *base, i64 stride, i64 size, const i64 *row, i64 n, char *out) {
  switch (size) {
    SIZES
    default: break;
  }
  if (size > 1024) EACH memcpy(out + i * size, base + row[i] * stride, (size_t)size);
  else EACH move(out + i * size, base + row[i] * stride, size);
}

#undef FIXED
#define FIXED(bytes) case bytes: EACH memcpy(to[i], from + i * bytes, bytes); return;

/* Copies values that lie side by side to places [n]. */
static void deal(const char *from, i64 size, i64 n, char *const *to) {
  switch (size) {
    SIZES
    default: EACH move(to[i], from + i * size, size);
  }
}

/* The difference in double: times and counters are large against the range that they vary in. */
static void scaled(const Column *c, const char *base, const i64 *row, i64 n, char *out) {
  EACH {
    const char *from = base + row[i] * c->stride;
    float *to = (float *)(out + i * c->size);
    if (c->value == NARROW)
      for (i64 k = 0; k < c->count; k++) to[k] = (float)(((const double *)from)[k] - c->shift[k]) / c->scale[k];
    else
      for (i64 k = 0; k < c->count; k++) to[k] = (float)((double)((const float *)from)[k] - c->shift[k]) / c->scale[k];
  }
}

/* Sum of gamma^j * reward, in double, one after the other, as plain Python adds up. */
static inline __attribute__((always_inline)) void summed(const Column *c, const i64 count, const i64 doubles,
                                                         const i64 *row, const i64 *span, i64 n, char *out) {
  const double *power = (const double *)c->other;
  EACH for (i64 k = 0; k < count; k++) {
    double total = 0;
    const char *at = c->base + row[i] * c->stride;
    for (i64 j = 0; j < span[i]; j++, at += c->stride)
      total += power[j] * (doubles & 1 ? ((const double *)at)[k] : (double)((const float *)at)[k]);
    if (doubles & 2) ((double *)out)[i * count + k] = total;
    else ((float *)out)[i * count + k] = (float)total;
  }
}

static void sum(const Column *c, const i64 *row, const i64 *span, i64 n, char *out) {
  if (c->count == 1 && !c->doubles) summed(c, 1, 0, row, span, n, out); /* of most datasets */
  else summed(c, c->count, c->doubles, row, span, n, out);
}

static inline i64 is_inside(const Plan *p, const Tile *t, const Column *c, i64 i) {
  if (c->mask & 1 && (i < t->low || t->high <= i)) return 0;
  if (!(c->mask & 2) || c->place != NEIGHBOUR) return 1;
  const i64 at = t->step[i] + c->amount + (c->amount > 0 ? t->span[i] - 1 : 0);
  return 0 <= at && at < p->windows.steps[t->episode[i]];
}

/* The values at rows [n]. */
static void values(const Column *c, const char *base, const i64 *row, i64 n, char *out) {
  if (c->scale) {
    scaled(c, base, row, n, out);
    return;
  }
  switch (c->value) {
    case COPY: copy(base, c->stride, c->size, row, n, out); break;
    case NARROW:
      EACH {
        const double *from = (const double *)(base + row[i] * c->stride);
        for (i64 k = 0; k < c->count; k++) ((float *)(out + i * c->size))[k] = (float)from[k];
      }
      break;
    case WIDEN:
      EACH {
        const float *from = (const float *)(base + row[i] * c->stride);
        for (i64 k = 0; k < c->count; k++) ((double *)(out + i * c->size))[k] = (double)from[k];
      }
      break;
    case EITHER: EACH out[i] = (char)(base[row[i] * c->stride] | c->other[row[i] * c->stride]); break;
    case ROW: memcpy(out, row, (size_t)n * 8); break;
  }
}

/* Rows of values done, done + 1, ... [m] of a column's offsets from entries `from` on, and which are in the episode. */
static void offset_rows(const Plan *p, const Tile *t, const Column *c, i64 from, i64 done, i64 m, i64 *row,
                        byte *inside) {
  for (i64 q = 0; q < m; q++) {
    const i64 i = from + (done + q) / c->amount, e = t->episode[i];
    const i64 at = t->step[i] + c->offsets[(done + q) % c->amount];
    row[q] = p->windows.start[e] + clip(at, 0, c->limit[e] - 1), inside[q] = 0 <= at && at < c->limit[e];
  }
}

/* All offsets of entries [from, from + n): n * amount values. */
static void offsets(const Plan *p, const Tile *t, const Column *c, i64 from, i64 n, char *out) {
  i64 row[TILE];
  byte inside[TILE];
  for (i64 done = 0; done < n * c->amount; done += TILE) {
    const i64 m = least(TILE, n * c->amount - done);
    offset_rows(p, t, c, from, done, m, row, inside);
    char *to = out + done * c->size;
    if (c->value == INSIDE) memcpy(to, inside, (size_t)m);
    else values(c, c->base, row, m, to);
    if (c->blank)
      for (i64 q = 0; q < m; q++) if (!inside[q]) memset(to + q * c->size, 0, (size_t)c->size);
  }
}

/* Writes one column of entries [from, from + n). */
static void column(const Plan *p, const Samples *s, const Tile *t, const Column *c, i64 from, i64 n, char *out) {
  const Windows *w = &p->windows;
  const i64 *e = t->episode + from, *step = t->step + from, *span = t->span + from;
  const char *base = c->given < 0 || c->place == GIVEN ? c->base : (const char *)s->given[c->given];
  const i64 low = clip(t->low - from, 0, n), high = clip(t->high - from, low, n); /* inside the episode */
  i64 scratch[TILE], *number = (i64 *)out;
  if (c->place == OFFSETS) {
    offsets(p, t, c, from, n, out);
    return;
  }
  switch (c->value) {
    case STEP: memcpy(out, step, (size_t)n * 8); break;
    case INDEX:
      EACH number[i] = step[i] < w->transitions[e[i]] ? (i64)(((const u64 *)base)[e[i]] + (u64)step[i]) : -1;
      break;
    case OBSERVED: EACH out[i] = step[i] + span[i] < w->observed[e[i]]; break;
    case INSIDE:
      if (t->lone && c->mask == 1) memset(out, 0, (size_t)n), memset(out + low, 1, (size_t)(high - low));
      else EACH out[i] = (char)is_inside(p, t, c, from + i);
      break;
    case ZERO: memset(out, 0, (size_t)(n * c->size)); break;
    case DISTANCE: /* from each step to the goal, whose step is given */
      EACH {
        const i64 ahead = ((const i64 *)base)[t->lone ? t->sample : t->sample + from + i] - step[i];
        number[i] = ahead < -1 ? -1 : ahead;
      }
      break;
    default: {
      const i64 *row = rows_of(p, s, t, c->place, c->amount, c->given, from, n, scratch);
      if (c->value == SUM) sum(c, row, span, n, out);
      else if (t->lone && c->place == HERE && c->stride == c->size && !c->scale && high > low &&
               (c->value == COPY || c->value == EITHER)) { /* rows inside follow each other */
        const i64 first = row[low] * c->stride;
        values(c, base, row, low, out);
        if (c->value == COPY) copy_ahead(out + low * c->size, base + first, (high - low) * c->size, t->ahead * c->size);
        else for (i64 i = 0; i < high - low; i++) out[low + i] = (char)(base[first + i] | c->other[first + i]);
        values(c, base, row + high, n - high, out + high * c->size);
      } else values(c, base, row, n, out);
    }
  }
  if (c->blank) EACH if (!is_inside(p, t, c, from + i)) memset(out + i * c->size, 0, (size_t)c->size);
}

/* Writes all columns of the tile; `done` entries were written before it. */
static void write(const Plan *p, const Samples *s, const Tile *t, i64 n, i64 done, char *const *out) {
  for (i64 k = 0; k < p->columns; k++) {
    const Column *c = p->column + k;
    if (c->size) column(p, s, t, c, 0, n, out[k] + done * c->size * (c->place == OFFSETS ? c->amount : 1));
  }
}

/* Where samples go that are not written one after the other: sample i to row slot[i] % size of batch slot[i] / size. */
typedef struct {
  const i64 *slot;
  i64 size; /* samples of a batch */
} Slots;

/* Writes all columns of the tile's entries to the slots [n] of batches, out [batches, columns]. */
static void spread(const Plan *p, const Samples *s, const Tile *t, i64 n, const Slots *to, i64 done, char *const *out) {
  _Alignas(16) char near[AHEAD * NEAR];
  char *const *batch[AHEAD], *at[AHEAD];
  i64 row[AHEAD];
  fetch(p, s, t, 0, least(AHEAD, n));
  for (i64 from = 0; from < n; from += AHEAD) {
    const i64 part = least(AHEAD, n - from);
    fetch(p, s, t, from + part, least(AHEAD, n - from - part));
    for (i64 i = 0; i < part; i++) {
      const i64 slot = to->slot[done + from + i];
      batch[i] = out + slot / to->size * p->columns, row[i] = slot % to->size;
    }
    for (i64 k = 0; k < p->columns; k++) {
      const Column *c = p->column + k;
      const i64 width = c->size * (c->place == OFFSETS ? c->amount : 1);
      if (!width) continue;
      for (i64 i = 0; i < part; i++) at[i] = batch[i][k] + row[i] * width;
      if (width <= NEAR) column(p, s, t, c, from, part, near), deal(near, width, part, at);
      else for (i64 i = 0; i < part; i++) column(p, s, t, c, from + i, 1, at[i]);
    }
  }
}

/* -- touch: the blocks of files that a gather reads -- */

typedef struct {
  i64 column;       /* the rows are those of this column; -1: the flags that can end a sum */
  u64 at;           /* address of row 0 */
  i64 stride, size; /* bytes from row to row, and of a row that are read */
  u64 base;         /* address of the first byte of the file; of the first of several, which lie end to end */
  i64 first;        /* number of its first block */
  i64 chunk, per;   /* bytes of each of several files, and their blocks; 0: there is one */
} Read;

typedef struct {
  i64 reads;
  const Read *read;
  i64 shift;   /* log2 of the bytes of a block */
  i64 before;  /* flags are not read: no flag ends a sum */
  byte *marks; /* [blocks] */
  i64 *list;   /* [room] numbers of the blocks that were marked */
  i64 room, count;
} Touch;

static inline i64 block_at(const Touch *to, const Read *r, u64 at) {
  const u64 within = at - r->base;
  if (!r->chunk) return r->first + (i64)(within >> to->shift);
  return r->first + (i64)(within / (u64)r->chunk) * r->per + (i64)(within % (u64)r->chunk >> to->shift);
}

/* Marks the blocks of rows [row, row + n). */
static void mark(Touch *to, const Read *r, i64 row, i64 n) {
  if (n > 1 && r->stride != r->size) { /* what lies between rows is not read */
    EACH mark(to, r, row + i, 1);
    return;
  }
  const u64 at = r->at + (u64)row * (u64)r->stride;
  const i64 last = block_at(to, r, at + (u64)((n - 1) * r->stride + r->size - 1));
  for (i64 b = block_at(to, r, at); b <= last; b++)
    if (!to->marks[b]) {
      to->marks[b] = 1;
      if (to->count < to->room) to->list[to->count] = b;
      to->count++;
    }
}

/* Marks what the columns read for the tile, instead of writing them. */
static void touch(const Plan *p, const Samples *s, const Tile *t, i64 n, Touch *to) {
  i64 row[TILE];
  byte inside[TILE];
  for (const Read *r = to->read; r < to->read + to->reads; r++) {
    if (r->column < 0) {
      EACH {
        const i64 most = least(p->windows.transitions[t->episode[i]] - t->step[i], p->n_step);
        if (most > 1) mark(to, r, t->row[i], most - 1);
      }
      continue;
    }
    const Column *c = p->column + r->column;
    if (c->place == OFFSETS)
      for (i64 done = 0; done < n * c->amount; done += TILE) {
        const i64 m = least(TILE, n * c->amount - done);
        offset_rows(p, t, c, 0, done, m, row, inside);
        for (i64 q = 0; q < m; q++) mark(to, r, row[q], 1);
      }
    else {
      const i64 *at = rows_of(p, s, t, c->place, c->amount, c->given, 0, n, row);
      if (t->lone && c->place == HERE) mark(to, r, at[0], at[n - 1] - at[0] + 1); /* no row between them is left out */
      else EACH mark(to, r, at[i], c->value == SUM ? t->span[i] : 1);
    }
  }
}

/* How many steps each entry sums: to the first done one, the episode's last transition, or n_step. */
static void spans(const Plan *p, Tile *t, i64 n) {
  const i64 last = (p->n_step - 2) * p->stride; /* the last flags that can matter */
  const int near = (u64)(uintptr_t)p->truncated - (u64)(uintptr_t)p->terminated + 63 < 127;
  EACH {
    const i64 at = t->row[i] * p->stride;
    for (i64 b = 0; b < last + 64 && b < 512; b += 64) {
      const u64 next = (u64)(at + least(b, last));
      prefetch((u64)(uintptr_t)p->terminated + next);
      if (!near) prefetch((u64)(uintptr_t)p->truncated + next);
    }
  }
  EACH {
    const i64 most = least(p->windows.transitions[t->episode[i]] - t->step[i], p->n_step);
    i64 span = 1;
    for (i64 at = t->row[i] * p->stride; span < most && !(p->terminated[at] | p->truncated[at]); at += p->stride) span++;
    t->span[i] = span;
  }
}

/* The same where no flag ends a sum. */
static void longest_spans(const Plan *p, Tile *t, i64 n) {
  EACH {
    const i64 most = least(p->windows.transitions[t->episode[i]] - t->step[i], p->n_step);
    t->span[i] = most > 1 ? most : 1;
  }
}

/* Gathers samples first, first + 1, ... [n] into the outputs [n, ...] or [n, length, ...], one for each column; into
 * `slots` of several batches' outputs, if there are any; or touches what would be read, if there is a `to`.
 * Returns the number of a sample that names no episode, or no step of it; -1 for none. */
static i64 gather(const Plan *p, const Samples *s, i64 first, i64 n, const Slots *slots, char *const *out, Touch *to) {
  const Windows *w = &p->windows;
  const i64 *episode = s->episode + first, *number = s->number + first;
  Tile t;
  EACH {
    const i64 e = episode[i];
    if ((u64)e >= (u64)w->episodes || w->steps[e] < 1) return first + i;
    const i64 step = first_step(w, number[i]);
    if (!s->length && (u64)step >= (u64)(p->n_step ? w->transitions : w->steps)[e]) return first + i;
  }
  for (const Column *c = p->column; c < p->column + p->columns; c++)
    if (c->place == GIVEN && c->given >= 0)
      EACH if (((const u64 *)s->given[c->given])[first + i] >= (u64)p->rows) return first + i;
  if (!s->length) {
    t.lone = 0, t.low = 0, t.high = TILE;
    for (i64 done = 0; done < n; done += TILE) {
      const i64 m = least(TILE, n - done);
      t.sample = first + done;
      for (i64 i = 0; i < m; i++) {
        t.episode[i] = episode[done + i], t.span[i] = 1;
        t.step[i] = first_step(w, number[done + i]), t.row[i] = w->start[t.episode[i]] + t.step[i];
      }
      if (p->terminated && p->n_step > 1 && !(to && to->before)) spans(p, &t, m);
      else if (p->n_step > 1) longest_spans(p, &t, m);
      if (to) touch(p, s, &t, m, to);
      else if (slots) spread(p, s, &t, m, slots, done, out);
      else fetch(p, s, &t, 0, m), write(p, s, &t, m, done, out); /* the rows of a slice, below, follow each other */
    }
    return -1;
  }
  t.lone = 1;
  for (i64 k = 0; k < n; k++) {
    const i64 row = slots ? slots->slot[k] % slots->size : k;
    char *const *batch = slots ? out + slots->slot[k] / slots->size * p->columns : out;
    const i64 e = episode[k], T = w->steps[e], start = first_step(w, number[k]);
    const i64 low = clip(start, 0, T - 1), high = clip(start + s->length, low + 1, T); /* its steps inside */
    const i64 begin = p->pad == LEFT ? high - s->length : p->pad == RIGHT ? low : start;
    t.sample = first + k, t.ahead = k + 1 < n ? first_row(w, episode[k + 1], number[k + 1]) - w->start[e] - low : 0;
    for (i64 done = 0; done < s->length; done += TILE) {
      const i64 m = least(TILE, s->length - done), from = begin + done;
      t.low = clip(low - from, 0, m), t.high = clip(high - from, t.low, m);
      for (i64 i = 0; i < m; i++) t.episode[i] = e, t.span[i] = 1;
      if (t.high - t.low == m) for (i64 i = 0; i < m; i++) t.step[i] = from + i, t.row[i] = w->start[e] + from + i;
      else for (i64 i = 0; i < m; i++) t.step[i] = clip(from + i, low, high - 1), t.row[i] = w->start[e] + t.step[i];
      if (to) touch(p, s, &t, m, to);
      else write(p, s, &t, m, row * s->length + done, batch);
    }
  }
  return -1;
}

/* Gathers batches of n samples each, from sample `first` on, into out [batches, columns]. */
API i64 rlds_gather(const Plan *p, const Samples *s, i64 first, i64 n, i64 batches, char *const *out) {
  for (i64 b = 0; b < batches; b++) {
    const i64 bad = gather(p, s, first + b * n, n, 0, out + b * p->columns, 0);
    if (bad >= 0) return bad;
  }
  return -1;
}

/* Gathers samples first, first + 1, ... [n] into the slots [n] of batches of `size` samples, out [batches, columns].
 * Returns the number of a sample whose slot is in none of the batches, too. */
API i64 rlds_scatter(const Plan *p, const Samples *s, i64 first, i64 n, const i64 *slot, i64 size, i64 batches,
                     char *const *out) {
  EACH if ((u64)slot[i] >= (u64)(size * batches)) return first + i;
  return gather(p, s, first, n, &(Slots){slot, size}, out, 0);
}

/* Marks the blocks that rlds_gather reads for samples first, first + 1, ... [n]. The flags that can end a sum must be
 * there already, unless it is done `before`: then rows are marked as if no flag ended a sum. */
API i64 rlds_touch(const Plan *p, const Samples *s, i64 first, i64 n, Touch *to) {
  return gather(p, s, first, n, 0, 0, to);
}

/* -- goals -- */

enum { GEOMETRIC, UNIFORM, FINAL, ANY, FIXED_STEPS };

typedef struct {
  double current, future, random, log_gamma;
  i64 horizon, steps;
  const i64 *limit; /* [episodes] rows that may be goals */
  Prefix anywhere;  /* of all of them */
} Goals;

static inline double part_of(double u, double first, double share) { /* draws of a range, spread over [0, 1) */
  const double x = (u - first) / share, below_one = 1 - 0x1p-53;
  return x < 0 ? 0 : x > below_one ? below_one : x;
}

/* How many steps ahead draws x [n] of [0, 1) are: log(1 - x) / log(gamma) + 1, rounded down. Almost always a logarithm
 * to six digits tells, of which four are taken at once; where it comes too close to an integer, the exact one does. */
static void geometric(const Goals *g, const double *x, i64 n, i64 *ahead) {
  const float scale = (float)(1 / g->log_gamma);
  float about[TILE];
  EACH {
    const float y = (float)(1 - x[i]); /* m * 2**e, m about 1 */
    int32_t bits, e, rest;
    memcpy(&bits, &y, 4), e = (bits - ROOT_OF_HALF) >> 23, rest = bits - e * (1 << 23);
    float m;
    memcpy(&m, &rest, 4);
    const float s = (m - 1) / (m + 1), z = s * s;
    about[i] = ((float)e * 0.693147181f + 2 * s * (1 + z * (1.f / 3 + z * (1.f / 5 + z * (1.f / 7))))) * scale + 1;
  }
  int32_t whole[TILE], is_close[TILE], any = 0;
  EACH about[i] = about[i] < 0x1p30f ? about[i] : 0x1p30f; /* where floats have no fractions */
  EACH whole[i] = (int32_t)about[i];
  EACH is_close[i] = fabsf(about[i] - (float)whole[i] - 0.5f) >= 0.5f - 1e-6f * (about[i] - scale);
  EACH any |= is_close[i];
  EACH ahead[i] = whole[i];
  if (any) EACH if (is_close[i] & (x[i] > 0)) ahead[i] = (i64)(log(1 - x[i]) / g->log_gamma + 1.0);
}

/* Rows of goals of samples first, first + 1, ... [n], at most TILE, and their steps in the sample's own episode, -1 for
 * one of another; `u` [n] in [0, 1). Returns the number of a sample that names no episode; -1 for none. */
static i64 take_aim(const Goals *g, const Windows *w, const Samples *s, i64 first, i64 n, const double *u, i64 *row,
                    i64 *goal) {
  const i64 *episode = s->episode + first, *number = s->number + first;
  const double others = g->current + g->future;
  double spread[TILE];
  const double *part = g->future == 1 ? u : spread;
  i64 hop[TILE];
  EACH if ((u64)episode[i] >= (u64)w->episodes || w->steps[episode[i]] < 1) return first + i;
  if (part == spread && g->future > 0) EACH spread[i] = part_of(u[i], g->current, g->future);
  if (g->future > 0 && g->horizon == GEOMETRIC) geometric(g, part, n, hop);
  EACH {
    const i64 e = episode[i], start = first_step(w, number[i]), last = w->steps[e] - 1, limit = g->limit[e];
    const i64 at = clip(s->length ? start + s->length - 1 : start, 0, last); /* the last that is real */
    const i64 ahead = limit - 1 - at;
    if (g->random > 0 && u[i] >= others) {
      i64 picked = (i64)(part_of(u[i], others, g->random) * (double)g->anywhere.total), other, there;
      if (rlds_find(&g->anywhere, &picked, 1, &other, &there) >= 0) return first + i;
      if (other >= w->episodes || there > w->steps[other]) return first + i;
      row[i] = w->start[other] + there, goal[i] = w->start[other] == w->start[e] ? there : -1;
      continue;
    }
    i64 found = at;
    if (g->future > 0 && u[i] >= g->current) switch (g->horizon) {
        case GEOMETRIC: found += least(hop[i], ahead); break;
        case UNIFORM: found += least((i64)(part[i] * (double)ahead) + 1, ahead); break;
        case FINAL: found += ahead; break;
        case ANY: found = (i64)(part[i] * (double)limit); break;
        default: found += least(g->steps, ahead);
      }
    goal[i] = clip(found, 0, last + 1), row[i] = w->start[e] + goal[i];
  }
  return -1;
}

/* Rows and steps of goals [n], see `take_aim`. */
API i64 rlds_goals(const Goals *g, const Windows *w, const Samples *s, i64 n, const double *u, i64 *row, i64 *goal) {
  for (i64 done = 0; done < n; done += TILE) {
    const i64 bad = take_aim(g, w, s, done, least(TILE, n - done), u + done, row + done, goal + done);
    if (bad >= 0) return bad;
  }
  return -1;
}

/* -- a tree of sums: eight children to a node, which is then one cache line; level 0 holds the masses -- */

enum { LEVELS = 14, WIDE = 8 };

typedef struct {
  i64 count, levels;
  double *sum[LEVELS], *least[LEVELS]; /* padded to eights with zeros; least[0] is sum[0] */
} Tree;

static inline double lesser(double x, double y) { return x < y ? x : y; }

/* The smallest of a node's children that is not zero; infinity if all are. */
static __attribute__((noinline)) double least_but_zero(const double *m) {
  double smallest = INFINITY;
  for (i64 j = 0; j < WIDE; j++) smallest = m[j] > 0 ? lesser(m[j], smallest) : smallest;
  return smallest;
}

/* Node k of a level from its children; zeros are padding. Summed anew, so that sums never drift from the masses. */
static inline void renew(const Tree *t, i64 level, i64 k) {
  const double *s = t->sum[level - 1] + WIDE * k, *m = t->least[level - 1] + WIDE * k;
  const double left = lesser(lesser(m[0], m[1]), lesser(m[2], m[3]));
  const double smallest = lesser(left, lesser(lesser(m[4], m[5]), lesser(m[6], m[7])));
  t->sum[level][k] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  t->least[level][k] = smallest > 0 ? smallest : least_but_zero(m);
}

/* All nodes above numbers [first, stop). */
API void rlds_tree_renew(const Tree *t, i64 first, i64 stop) {
  for (i64 level = 1; level < t->levels; level++) {
    first /= WIDE, stop = (stop + WIDE - 1) / WIDE;
    for (i64 k = first; k < stop; k++) renew(t, level, k);
  }
}

/* The sum of all masses and the smallest one. */
API void rlds_tree_top(const Tree *t, double *total, double *smallest) {
  const i64 top = t->levels - 1;
  *total = 0, *smallest = INFINITY;
  for (i64 j = 0; j < WIDE; j++) {
    const double m = t->least[top][j];
    *total += t->sum[top][j];
    if (m > 0 && m < *smallest) *smallest = m;
  }
}

/* Two draws at a time, in the lanes of a vector: most processors compute both at once. */
typedef double Pair __attribute__((vector_size(16)));
typedef i64 Mask __attribute__((vector_size(16))); /* all bits of a lane, or none */

static inline Pair part(Mask where, Pair x) { return (Pair)((Mask)x & where); }
static inline Pair either(Mask where, Pair yes, Pair no) { return (Pair)(((Mask)yes & where) | ((Mask)no & ~where)); }

/* The children of nodes a and b that two draws fall on: by halves, and without branches, which nobody could foresee.
 * `at` is the place of each draw within its node, and then within the child. */
static inline __attribute__((always_inline)) Mask descend(const double *a, const double *b, Pair *at) {
  Pair s[WIDE], x = *at;
  for (int j = 0; j < WIDE - 1; j++) s[j] = (Pair){a[j], b[j]};
  const Pair first = s[0] + s[1], third = s[4] + s[5], half = first + (s[2] + s[3]);
  const Mask four = x >= half;
  x -= part(four, half);
  const Pair quarter = either(four, third, first);
  const Mask two = x >= quarter;
  x -= part(two, quarter);
  const Pair eighth = either(two, either(four, s[6], s[2]), either(four, s[4], s[0]));
  const Mask one = x >= eighth;
  *at = x - part(one, eighth);
  return (four & 4) | (two & 2) | (one & 1);
}

/* The last number up to this one whose mass is not zero: rounding may lead a draw past the last mass of a node. */
static __attribute__((noinline)) i64 with_mass(const Tree *t, i64 number) {
  i64 found = number;
  while (found > 0 && !(t->sum[0][found] > 0)) found--;
  return t->sum[0][found] > 0 ? found : number;
}

/* The number that each draw u [n] in [0, 1) falls on. All draws go down a level together: their misses overlap. */
API void rlds_tree_find(const Tree *t, const double *u, i64 n, i64 *number) {
  if (t->count < 1) {
    EACH number[i] = -1;
    return;
  }
  double total, smallest;
  Pair at[TILE / 2];
  i64 node[TILE], nodes[LEVELS + 1] = {t->count};
  for (i64 level = 0; level < t->levels; level++) nodes[level + 1] = (nodes[level] + WIDE - 1) / WIDE;
  rlds_tree_top(t, &total, &smallest);
  for (i64 done = 0; done < n; done += TILE) {
    const i64 m = least(TILE, n - done), even = m + m % 2; /* an odd one goes down twice */
    for (i64 i = 0; i < even; i++) at[i / 2][i % 2] = u[done + least(i, m - 1)] * total, node[i] = 0;
    for (i64 level = t->levels - 1; level >= 0; level--) {
      const double *s = t->sum[level], *below = t->sum[level ? level - 1 : 0];
      const i64 last = nodes[level] - 1, wide = level ? WIDE : 1;
      for (i64 i = 0; i < even; i += 2) {
        const Mask child = descend(s + WIDE * node[i], s + WIDE * node[i + 1], at + i / 2);
        node[i] = least(WIDE * node[i] + child[0], last), node[i + 1] = least(WIDE * node[i + 1] + child[1], last);
        __builtin_prefetch(below + wide * node[i]), __builtin_prefetch(below + wide * node[i + 1]);
      }
    }
    for (i64 i = 0; i < m; i++) number[done + i] = t->sum[0][node[i]] > 0 ? node[i] : with_mass(t, node[i]);
  }
}

/* Chance of each number, and its importance weight (smallest mass / mass)^beta. */
API i64 rlds_tree_weigh(const Tree *t, const i64 *number, i64 n, double beta, double *chance, double *weight) {
  double total, smallest;
  rlds_tree_top(t, &total, &smallest);
  EACH if ((u64)number[i] >= (u64)t->count) return i;
  EACH chance[i] = t->sum[0][number[i]];
  EACH weight[i] = smallest / chance[i], chance[i] /= total;
  EACH weight[i] = pow(weight[i], beta);
  return -1;
}

/* Draws numbers of a stream's uniform draws, with their intervals and places in them, their chances and importance
 * weights: five rows [n] of `out`. Returns the place of a number that no interval has, or -1. */
API i64 rlds_tree_draw(const Tree *t, const Prefix *x, const Stream *s, const Numbers *p, i64 n, double beta, i64 *out) {
  double *chance = (double *)(out + 3 * n), *weight = chance + n;
  rlds_uniform(s, p, n, 1, weight);
  rlds_tree_find(t, weight, n, out);
  rlds_tree_weigh(t, out, n, beta, chance, weight);
  return rlds_find(x, out, n, out + n, out + 2 * n);
}

/* Sets masses (priority + eps)^alpha; where a number stands twice its last priority counts.
 * Returns the place of a number or priority that is not possible, before anything is set; -1 for none. */
API i64 rlds_tree_update(const Tree *t, const i64 *number, const double *priority, i64 n, double eps, double alpha,
                         double most) {
  EACH if (!(priority[i] >= 0 && priority[i] <= most && (u64)number[i] < (u64)t->count)) return i;
  i64 node[TILE];
  for (i64 done = 0; done < n; done += TILE) {
    const i64 m = least(TILE, n - done);
    for (i64 i = 0; i < m; i++) {
      node[i] = number[done + i];
      __builtin_prefetch(t->sum[0] + node[i], 1);
      for (i64 level = 1, k = node[i] / WIDE; level < least(t->levels, 4); level++, k /= WIDE)
        __builtin_prefetch(t->sum[level] + k, 1), __builtin_prefetch(t->least[level] + k, 1);
    }
    for (i64 i = 0; i < m; i++) t->sum[0][node[i]] = pow(priority[done + i] + eps, alpha);
    for (i64 level = 1, nodes = t->count; level < t->levels; level++) {
      nodes = (nodes + WIDE - 1) / WIDE;
      if (nodes <= m) /* most of them are above one of the numbers: each once */
        for (i64 k = 0; k < nodes; k++) renew(t, level, k);
      else
        for (i64 i = 0; i < m; i++) renew(t, level, node[i] /= WIDE);
    }
  }
  return -1;
}
