/* Batches for Python, made in one call: the memory of each in one piece (a slab), arrays or tensors that are parts of
 * it, and nested dicts of them. What is in the arrays is written afterwards, by rlds_gather or rlds_scatter.
 *
 * Neither headers nor libraries of Python, NumPy or torch are needed: slabs.py hands over the addresses of public
 * functions, and checks their versions. Arrays come from NumPy's C API, tensors from DLPack's exchange API: each tensor
 * has a storage of its own, so that it can be saved and pickled alone, and no tensor is a view of another.
 *
 * A slab is free when the last of its arrays is gone. Its pool keeps some that are free, for batches to come, and lives
 * as long as its owner and all of its slabs. Arrays may be dropped by any thread, with or without the GIL: counts and
 * places of spare slabs are atomic, and nothing is locked, so that a process may fork at any time.
 */
#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64;
typedef uint64_t u64;
typedef void Object; /* of Python */

#define API __attribute__((visibility("default")))

enum {
  DIMS = 16,     /* axes of an array at most */
  COLUMNS = 256, /* arrays of a batch at most, and dicts */
  SPARES = 40,   /* slabs that a pool keeps at most */
  ALIGNED = 64   /* bytes: every array starts at a cache line */
};

static const i64 KEPT = 4 << 20; /* bytes of slabs that a pool keeps, if that is more than FEWEST of them */
static const i64 FEWEST = 4;

/* -- DLPack 1: https://dmlc.github.io/dlpack/latest/c_api.html -- */

typedef struct {
  int32_t type, number;
} Device;

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} Type;

typedef struct {
  void *data;
  Device device;
  int32_t ndim;
  Type type;
  i64 *shape, *strides;
  u64 offset;
} Tensor;

typedef struct Managed {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct Managed *);
  u64 flags;
  Tensor tensor;
} Managed;

enum { CPU = 1 };

/* -- what slabs.py describes -- */

typedef struct {
  Object *(*new_list)(i64);
  int (*set_item)(Object *, i64, Object *);
  int (*set_key)(Object *, Object *, Object *);
  Object *(*call)(Object *);
  Object *(*new_capsule)(void *, const char *, void (*)(Object *));
  void *(*pointer)(Object *, const char *);
  void (*incref)(Object *), (*decref)(Object *);
  Object *(*no_memory)(void);
  Object *(*new_array)(Object *, int, const i64 *, int, const i64 *, void *, int, int, Object *);
  int (*set_base)(Object *, Object *);
  Object *array; /* the type */
} Functions;

typedef struct {
  i64 size, number, code, bits; /* bytes of a value; its dtype for NumPy, and for DLPack */
  i64 ndim, shape[DIMS];        /* of a value */
} Kind;

typedef struct {
  i64 dict;   /* the dict that it is in: 0 is the batch, others are numbered as they come */
  i64 column; /* the array; -1: another dict */
  Object *key;
} Entry;

typedef struct {
  const Functions *python;
  int (*new_tensor)(Managed *, Object **); /* NULL: arrays of NumPy */
  i64 columns, entries;
  const Kind *kind;
  const Entry *entry;
  Object *batch; /* the type of dicts; NULL: a batch is a list of its arrays */
} Form;

/* -- slabs -- */

typedef struct Slab Slab;

typedef struct {
  i64 offset, ndim, shape[DIMS], strides[DIMS];
} Layout;

typedef struct {
  i64 references; /* of the owner, and of slabs that arrays refer to */
  i64 header, bytes, spares;
  Slab *spare[SPARES];
  Form form;
  Layout layout[];
} Pool;

struct Slab {
  i64 references; /* of tensors; of the one capsule that is the base of all arrays */
  Pool *pool;
  Managed part[]; /* a column each */
};

static inline i64 padded(i64 bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

static inline char *data_of(const Pool *p, Slab *s, i64 column) {
  return (char *)s + p->header + p->layout[column].offset;
}

static void leave(Pool *p) {
  if (__atomic_sub_fetch(&p->references, 1, __ATOMIC_ACQ_REL)) return;
  for (i64 i = 0; i < p->spares; i++) free(p->spare[i]);
  free(p);
}

static void drop(Slab *s) {
  if (__atomic_sub_fetch(&s->references, 1, __ATOMIC_ACQ_REL)) return;
  Pool *p = s->pool;
  int kept = 0;
  for (i64 i = 0; i < p->spares && !kept; i++) {
    Slab *none = 0;
    kept = !__atomic_load_n(&p->spare[i], __ATOMIC_RELAXED) &&
           __atomic_compare_exchange_n(&p->spare[i], &none, s, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  }
  if (!kept) free(s);
  leave(p);
}

static void drop_tensor(Managed *m) { drop(m->context); }

static void *(*pointer_of)(Object *, const char *); /* PyCapsule_GetPointer */

static void drop_base(Object *capsule) { drop(pointer_of(capsule, 0)); }

/* A slab that nothing refers to, with `references`; NULL if there is no memory. */
static Slab *take(Pool *p, i64 references) {
  Slab *s = 0;
  for (i64 i = 0; i < p->spares && !s; i++)
    if (__atomic_load_n(&p->spare[i], __ATOMIC_RELAXED)) s = __atomic_exchange_n(&p->spare[i], 0, __ATOMIC_ACQ_REL);
  if (!s) {
    s = aligned_alloc(ALIGNED, (size_t)(p->header + p->bytes));
    if (!s) return 0;
    s->pool = p;
    for (i64 k = 0; k < p->form.columns; k++) {
      const Kind *kind = p->form.kind + k;
      Layout *at = p->layout + k;
      const Type type = {(uint8_t)kind->code, (uint8_t)kind->bits, 1};
      const Tensor t = {data_of(p, s, k), {CPU, 0}, (int32_t)at->ndim, type, at->shape, at->strides, 0};
      s->part[k] = (Managed){1, 0, s, drop_tensor, 0, t};
    }
  }
  __atomic_add_fetch(&p->references, 1, __ATOMIC_RELAXED);
  s->references = references;
  return s;
}

/* A pool of batches whose arrays are [*lead, ...]; its owner calls rlds_leave. NULL if there is no memory.
 * What the form points to must stay as long as the owner takes batches. */
API Pool *rlds_pool(const Form *form, const i64 *lead, i64 axes) {
  Pool *p = calloc(1, sizeof(Pool) + (size_t)form->columns * sizeof(Layout));
  if (!p) return 0;
  pointer_of = form->python->pointer;
  p->references = 1, p->form = *form;
  p->header = padded((i64)(sizeof(Slab) + (size_t)form->columns * sizeof(Managed)));
  for (i64 k = 0; k < form->columns; k++) {
    const Kind *kind = form->kind + k;
    Layout *at = p->layout + k;
    at->offset = p->bytes;
    i64 values = 1, step = 1;
    for (i64 d = 0; d < axes; d++) at->shape[at->ndim++] = lead[d], values *= lead[d];
    for (i64 d = 0; d < kind->ndim; d++) at->shape[at->ndim++] = kind->shape[d];
    for (i64 d = at->ndim - 1; d >= 0; d--) at->strides[d] = step, step *= at->shape[d];
    p->bytes += padded(values * kind->size);
  }
  p->spares = KEPT / (p->header + p->bytes);
  p->spares = p->spares < FEWEST ? FEWEST : p->spares > SPARES ? SPARES : p->spares;
  return p;
}

API void rlds_leave(Pool *p) { leave(p); }

/* -- batches -- */

/* Makes the arrays of a slab; returns how many, with an error of Python if these are not all. */
static i64 arrays(const Pool *p, Slab *s, Object **made) {
  enum { C_ORDER = 0x1, IS_ALIGNED = 0x100, WRITEABLE = 0x400 };
  const Functions *py = p->form.python;
  Object *base = py->new_capsule(s, 0, drop_base);
  if (!base) {
    drop(s);
    return 0;
  }
  i64 k = 0;
  for (; k < p->form.columns; k++) {
    const Layout *at = p->layout + k;
    made[k] = py->new_array(py->array, (int)at->ndim, at->shape, (int)p->form.kind[k].number, 0, data_of(p, s, k), 0,
                            C_ORDER | IS_ALIGNED | WRITEABLE, 0);
    if (!made[k]) break;
    py->incref(base);
    if (py->set_base(made[k], base)) { /* which has given up the reference */
      py->decref(made[k]);
      break;
    }
  }
  py->decref(base);
  return k;
}

/* The same with tensors. After an error the slab's memory is lost: who has the tensor that failed is not known. */
static i64 tensors(const Pool *p, Slab *s, Object **made) {
  i64 k = 0;
  while (k < p->form.columns && !p->form.new_tensor(s->part + k, made + k)) k++;
  return k;
}

/* Puts arrays into dicts, which take over the references. NULL after an error. */
static Object *nested(const Form *form, Object **made) {
  const Functions *py = form->python;
  Object *dict[COLUMNS + 1];
  int bad = !(dict[0] = py->call(form->batch));
  i64 dicts = 1;
  for (const Entry *e = form->entry; e < form->entry + form->entries; e++) {
    Object *value = e->column >= 0 ? made[e->column] : bad ? 0 : py->call(form->batch);
    if (e->column < 0) dict[dicts++] = value;
    bad = bad || !value || py->set_key(dict[e->dict], e->key, value);
    if (value) py->decref(value);
  }
  if (bad && dict[0]) py->decref(dict[0]);
  return bad ? 0 : dict[0];
}

static Object *listed(const Form *form, Object **made) {
  Object *list = form->python->new_list(form->columns);
  for (i64 k = 0; k < form->columns; k++)
    if (list) form->python->set_item(list, k, made[k]);
    else form->python->decref(made[k]);
  return list;
}

/* Makes a list of batches, and writes the addresses of their arrays, [batches, columns]. NULL after an error. */
API Object *rlds_batches(Pool *p, i64 batches, i64 *place) {
  const Form *form = &p->form;
  const Functions *py = form->python;
  Object *made[COLUMNS], *list = py->new_list(batches);
  for (i64 b = 0; list && b < batches; b++, place += form->columns) {
    Slab *s = take(p, form->new_tensor && form->columns ? form->columns : 1);
    if (!s) py->no_memory();
    const i64 count = !s ? 0 : form->new_tensor ? tensors(p, s, made) : arrays(p, s, made);
    Object *batch = 0;
    if (s && count == form->columns) {
      for (i64 k = 0; k < count; k++) place[k] = (i64)(intptr_t)data_of(p, s, k);
      batch = form->batch ? nested(form, made) : listed(form, made);
    } else
      for (i64 k = 0; k < count; k++) py->decref(made[k]);
    if (batch) py->set_item(list, b, batch);
    else {
      py->decref(list);
      return 0;
    }
  }
  return list;
}
