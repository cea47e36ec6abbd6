// The folder of cache files. Any number of processes use it at once, without locks: a file appears by
// rename(2), all of it; of two writers of one key the later wins, with the same bytes. No file is trusted
// that another user could have written: what it holds goes to the driver as code.
//
// Every call touches the disk: at module load only. No call raises a signal. Any thread. Errors name the
// path; a caller goes on without.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/cache/key.h"

namespace tessera::cache {

class Store {
 public:
  // `directory` is made, with its parents, when the first file is written; mode 0700. `max_bytes`: of all
  // files together; a file of more than a quarter of it is not kept, nor any
  // where the file system is nearly full.
  Store(std::string directory, uint64_t max_bytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}

  // The payload. kNotFound: there is none. Else the file is damaged or not ours; the next save() replaces it.
  base::Result<std::string> load(const Key& key) const;

  // Makes room by removing what was not read or written for longest.
  base::Status save(const Key& key, std::string_view payload) const;

 private:
  base::Status prepare() const;
  void make_room() const;

  std::string directory_;
  uint64_t max_bytes_;
};

}  // namespace tessera::cache
