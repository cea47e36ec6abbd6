/* Looks like a copy of libtessera.so under another inode. */
__attribute__((visibility("default"))) const long tessera_shim_marker = 1;
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags & 0); }
