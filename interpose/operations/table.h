// Counting calls by shape into the file of operations/table.h. Any thread, any number of processes; no lock, no
// allocation. What finds no slot is counted without its shape.
#pragma once

#include "interpose/operations/call.h"

namespace tessera::library {

// Once. False: no path, or not such a file.
bool open_table(const char* path);

// Nothing without a table.
void count_call(const Operation& operation);

}  // namespace tessera::library
