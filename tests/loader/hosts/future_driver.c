/* A driver that is newer than every table: two functions that nobody knows, and data. */
int cuInit(unsigned flags) { return (int)(flags & 0); }
int cuFutureData = 7;
/* Some arguments travel on the stack. */
int cuFutureCall(double* sum, int a, int b, int c, int d, int e, int f, int g, int h, int i, double x) {
  *sum = a + b + c + d + e + f + g + h + i + x;
  return 0;
}
int cuFutureCall_ptsz(double* sum, int a, int b, int c, int d, int e, int f, int g, int h, int i, double x) {
  return cuFutureCall(sum, a, b, c, d, e, f, g, h, i, x);
}
