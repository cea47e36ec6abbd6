/* A library linked with the driver: the address that its own calls of cuLaunchKernel go to. */
extern int cuLaunchKernel(void);
__attribute__((visibility("default"))) void* reach_module_function(void) {
  return (void*)&cuLaunchKernel;
}
