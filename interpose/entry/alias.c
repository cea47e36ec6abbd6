/* libtessera_alias.so: SONAME libcuda.so, NEEDED libcuda.so.1 (libtessera.so). Preloaded beside it so that a program's
   dlopen("libcuda.so") gets a handle whose lookups end in the shim. It has no code of its own. */
extern const char tessera_alias_marker;
__attribute__((visibility("hidden"))) const char tessera_alias_marker = 0;
