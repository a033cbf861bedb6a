/* What copying costs without a library around it: rows and windows gathered by memcpy, many at a time. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define AHEAD 12 /* samples: about as long as memory takes to answer */

static inline void touch(const char *p, int64_t size) {
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(p + at, 0, 1);
}

/* Sizes that are known when compiled become a few moves. */
static inline void copy(char *to, const char *from, int64_t size) {
  switch (size) {
    case 1: memcpy(to, from, 1); break;
    case 4: memcpy(to, from, 4); break;
    case 24: memcpy(to, from, 24); break;
    case 68: memcpy(to, from, 68); break;
    default: memcpy(to, from, (size_t)size);
  }
}

/* k columns: row index[i] + shift[c] of column c to place i of output c. */
void gather_rows(const char **column, char **output, const int64_t *size, const int64_t *shift, int64_t k,
                 const int64_t *index, int64_t n) {
  for (int64_t c = 0; c < k; c++) {
    const char *from = column[c] + shift[c] * size[c];
    for (int64_t i = 0; i < n; i++) {
      if (i + AHEAD < n) touch(from + index[i + AHEAD] * size[c], size[c]);
      copy(output[c] + i * size[c], from + index[i] * size[c], size[c]);
    }
  }
}

/* k columns: `length` rows from row first[i] + shift[c] on. */
void gather_windows(const char **column, char **output, const int64_t *size, const int64_t *shift, int64_t k,
                    const int64_t *first, int64_t n, int64_t length) {
  for (int64_t c = 0; c < k; c++) {
    const int64_t bytes = size[c] * length;
    for (int64_t i = 0; i < n; i++)
      memcpy(output[c] + i * bytes, column[c] + (first[i] + shift[c]) * size[c], (size_t)bytes);
  }
}

/* One packed record each, split into k outputs. */
void gather_records(const char *records, int64_t record, char **output, const int64_t *size, const int64_t *offset,
                    int64_t k, const int64_t *index, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (i + AHEAD < n) touch(records + index[i + AHEAD] * record, record);
    for (int64_t c = 0; c < k; c++)
      copy(output[c] + i * size[c], records + index[i] * record + offset[c], size[c]);
  }
}
