// Holds that expire again and again: cutting gains nothing any more (the rest goes out whole anyway) and costs
// the program its slices. Then its kernels are not cut for a while, longer each time, and the daemon is told.
// Any thread; no lock.
#pragma once

#include <cstdint>

namespace tessera::cut {

void note_expired_hold();   // of a cut launch, once
void note_served_launch();  // a cut launch went out in slices to its end
bool paused();
uint64_t expired_holds();  // all that were noted

}  // namespace tessera::cut
