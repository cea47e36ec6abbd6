// Cut variants as machine code that was proved equal to their originals' (kernels/sass): how they are kept. They belong
// to one piece of machine code, by its digest, and to the text that they were compiled from, by its own: a rewriter
// that makes another text does not use them.
//
// Two places with the same bytes: a file of the cache (store.h) under proved_key(), and comments at the end of the PTX
// that lies beside the machine code, which every reader of PTX passes over. Pure but for find_proved(); what reads takes
// any bytes. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/cache/key.h"
#include "kernels/cache/store.h"

namespace tessera::cache {

struct ProvedVariant {
  std::string kernel;
  Key text;          // of the variant's PTX: text_key()
  std::string code;  // a fat binary with the variant's machine code
  bool operator==(const ProvedVariant&) const = default;
};
using ProvedVariants = std::vector<ProvedVariant>;

Key proved_key(std::string_view machine_code);
Key text_key(std::string_view ptx);

std::string encode_proved(const ProvedVariants& variants);
base::Result<ProvedVariants> decode_proved(std::string_view bytes);

// The PTX with them at its end; and back. kNotFound: there are none. Else they are damaged, or of other machine code.
std::string with_proved(std::string_view ptx, const Key& key, const ProvedVariants& variants);
base::Result<ProvedVariants> proved_in(std::string_view ptx, const Key& key);

// Those of this machine code, from behind the PTX beside it or from the cache; none is no error. `problem`: why what was
// found is not used, "" if nothing was found.
ProvedVariants find_proved(std::string_view ptx, std::string_view machine_code, const Store& store,
                           std::string* problem);

}  // namespace tessera::cache
