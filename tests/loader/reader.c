/* In place of libtessera.so: prints the notes that it is given. READER_ROLE is the role that it says, 2 the one whose
   notes are read; READER_VERSION the version that it knows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct note {
  uint64_t flop, bytes;
  uint32_t entry;
  int32_t type;
  uint32_t resource_class, launches;
};
struct note_reader {
  const uint32_t* role;
  uint32_t reading_role, reserved;
  void (*set_note)(struct note*);
};

static uint32_t role;
static uint64_t number(const char* variable) {
  const char* text = getenv(variable);
  return text ? strtoull(text, NULL, 10) : 0;
}
static void set_note(struct note* note) {
  if (note)
    fprintf(stderr, "note %lu %lu %d %u %u\n", (unsigned long)note->flop, (unsigned long)note->bytes, note->type,
            note->resource_class, note->launches);
  else
    fprintf(stderr, "end\n");
}
static const struct note_reader reader = {&role, 2, 0, set_note};

const struct note_reader* tessera_note_reader(uint32_t version) {
  role = (uint32_t)number("READER_ROLE");
  return version == number("READER_VERSION") ? &reader : NULL;
}
