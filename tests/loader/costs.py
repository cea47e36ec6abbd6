"""What calls of cuBLAS cost, counted one multiplication and one element at a time: the reference that the formulas of
operations/families.def are compared with. Sizes are small.

Each function is given the integers of a call by name and the order of its sides as `left`, whether it is transposed as
`turned`; it returns multiplications, additions, and elements moved of A, B and C.
"""
from fractions import Fraction


def tri(n):
    return sum(1 for i in range(n) for j in range(i + 1))


def band(m, n, below, above):
    return sum(1 for i in range(m) for j in range(n) if i - j <= below and j - i <= above)


def order(v):
    return v["m"] if v["left"] else v["n"]


def vectors(v):  # lengths of y and x
    return (v["n"], v["m"]) if v["turned"] else (v["m"], v["n"])


def symmetric_product(v):
    steps = sum(1 for _ in range(v["m"] * v["n"]) for _ in range(order(v)))
    return steps, steps, tri(order(v)), v["m"] * v["n"], 2 * v["m"] * v["n"]


def triangular(v):
    muls = adds = 0
    others = v["m"] * v["n"] // order(v)
    for _ in range(others):
        for row in range(order(v)):
            muls, adds = muls + row + 1, adds + row
    return muls, adds


def triangular_product(v):
    return (*triangular(v), tri(order(v)), v["m"] * v["n"], v["m"] * v["n"])


def triangular_solve(v):
    return (*triangular(v), tri(order(v)), 0, 2 * v["m"] * v["n"])


def rank_k(v, times=1, operands=1):
    steps = times * tri(v["n"]) * v["k"]
    return steps, steps, v["n"] * v["k"], v["n"] * v["k"] * (operands - 1), 2 * tri(v["n"])


def matrix_vector(v, nonzero=None):
    y, x = vectors(v)
    nonzero = y * x if nonzero is None else nonzero
    return nonzero, nonzero, nonzero, x, 2 * y


def symmetric_vector(v):
    n, width = v["n"], v.get("k", v["n"])
    steps = band(n, n, width, width)
    return steps, steps, band(n, n, width, 0), n, 2 * n


def triangular_vector(v):
    steps = band(v["n"], v["n"], v.get("k", v["n"]), 0)
    return steps, steps - v["n"], steps, 0, 2 * v["n"]


def lu_steps(n):
    muls = adds = 0
    for k in range(n):
        for _ in range(k + 1, n):
            muls += 1 + (n - k - 1)
            adds += n - k - 1
    return muls, adds


def inverse_steps(n):  # the triangle's own, then times the other one
    muls = adds = 0
    for j in range(n):
        muls += 1 + j * (j + 1) // 2 + j + n * (n - 1 - j)
        adds += j * (j - 1) // 2 + n * (n - 1 - j)
    return muls, adds


def qr_steps(m, n):  # LAPACK Working Note 41
    third, sixth = Fraction(1, 3), Fraction(1, 6)
    if m > n:
        muls = n * (n * (Fraction(1, 2) - third * n + m) + m + 23 * sixth)
        adds = n * (n * (Fraction(1, 2) - third * n + m) + 5 * sixth)
    else:
        muls = m * (m * (Fraction(-1, 2) - third * m + n) + 2 * n + 23 * sixth)
        adds = m * (m * (Fraction(-1, 2) - third * m + n) + n + 5 * sixth)
    assert muls.denominator == adds.denominator == 1
    return int(muls), int(adds)


def lu_solve(v):
    muls = adds = 0
    for _ in range(v["nrhs"]):
        for row in range(v["n"]):
            muls, adds = muls + row + row + 1, adds + row + row
    return muls, adds, v["n"] ** 2, v["n"], 2 * v["n"] * v["nrhs"]


def least_squares(v):
    m, n, rhs = v["m"], v["n"], v["nrhs"]
    muls, adds = qr_steps(m, n)
    muls += rhs * (2 * m * n - n * n + 2 * n) + rhs * n * (n + 1) // 2
    adds += rhs * (2 * m * n - n * n + n) + rhs * n * (n - 1) // 2
    return muls, adds, 2 * m * n, 0, 2 * max(m, n) * rhs


def added(*pairs):
    return tuple(map(sum, zip(*pairs)))


COSTS = {
    "kProduct": lambda v: (v["m"] * v["n"] * v["k"],) * 2 + (v["m"] * v["k"], v["k"] * v["n"], 2 * v["m"] * v["n"]),
    "kSymmetricProduct": symmetric_product,
    "kTriangularProduct": triangular_product,
    "kTriangularSolve": triangular_solve,
    "kRankK": rank_k,
    "kRankKOfTwo": lambda v: rank_k(v, 1, 2),
    "kRank2K": lambda v: rank_k(v, 2, 2),
    "kMatrixSum": lambda v: (2 * v["m"] * v["n"],) + (v["m"] * v["n"],) * 4,
    "kDiagonalProduct": lambda v: (v["m"] * v["n"], 0, v["m"] * v["n"], order(v), v["m"] * v["n"]),
    "kRepack": lambda v: (0, 0, tri(v["n"]), 0, tri(v["n"])),
    "kMatrixVector": matrix_vector,
    "kBandVector": lambda v: matrix_vector(v, band(v["m"], v["n"], v["kl"], v["ku"])),
    "kSymmetricVector": symmetric_vector,
    "kSymmetricBandVector": symmetric_vector,
    "kTriangularVector": triangular_vector,
    "kTriangularBandVector": triangular_vector,
    "kOuterProduct": lambda v: (v["m"] * v["n"],) * 2 + (v["m"], v["n"], 2 * v["m"] * v["n"]),
    "kSymmetricOuterProduct": lambda v: (tri(v["n"]),) * 2 + (v["n"], 0, 2 * tri(v["n"])),
    "kSymmetricOuterProduct2": lambda v: (2 * tri(v["n"]),) * 2 + (v["n"], v["n"], 2 * tri(v["n"])),
    "kCopy": lambda v: (0, 0, v["n"], 0, v["n"]),
    "kSwap": lambda v: (0, 0, 2 * v["n"], 0, 2 * v["n"]),
    "kScale": lambda v: (v["n"], 0, 0, 0, 2 * v["n"]),
    "kScaleByReal": lambda v: (v["n"], 0, 0, 0, 2 * v["n"]),
    "kAddScaled": lambda v: (v["n"], v["n"], v["n"], 0, 2 * v["n"]),
    "kDot": lambda v: (v["n"], v["n"], v["n"], v["n"], 1),
    "kNorm": lambda v: (v["n"], v["n"], v["n"], 0, 1),
    "kAbsoluteSum": lambda v: (0, v["n"], v["n"], 0, 1),
    "kExtreme": lambda v: (0, 0, v["n"], 0, 1),
    "kRotate": lambda v: (4 * v["n"], 2 * v["n"], 2 * v["n"], 0, 2 * v["n"]),
    "kRotateByReal": lambda v: (4 * v["n"], 2 * v["n"], 2 * v["n"], 0, 2 * v["n"]),
    "kLu": lambda v: (*lu_steps(v["n"]), 0, v["n"], 2 * v["n"] ** 2),
    "kLuInverse": lambda v: (*inverse_steps(v["n"]), v["n"] ** 2, v["n"], v["n"] ** 2),
    "kLuSolve": lu_solve,
    "kInverse": lambda v: (*added(lu_steps(v["n"]), inverse_steps(v["n"])), v["n"] ** 2, 0, v["n"] ** 2),
    "kQr": lambda v: (*qr_steps(v["m"], v["n"]), 0, min(v["m"], v["n"]), 2 * v["m"] * v["n"]),
    "kLeastSquares": least_squares,
}
# FLOP of complex numbers where they are not 6 for each multiplication and 2 for each addition: the other factor is real,
# or parts are taken one by one.
COMPLEX = {
    "kScaleByReal": lambda n: 2 * n,
    "kNorm": lambda n: 2 * n + 2 * n,
    "kAbsoluteSum": lambda n: n + n,
    "kExtreme": lambda n: n,
    "kRotate": lambda n: 2 * (2 + 6 + 2) * n,
    "kRotateByReal": lambda n: 2 * (2 + 2 + 2) * n,
}


def flop_and_elements(family, values, is_complex):
    muls, adds, *elements = COSTS[family](values)
    if not is_complex:
        return muls + adds, elements
    if family in COMPLEX:
        return COMPLEX[family](values["n"]), elements
    return 6 * muls + 2 * adds, elements
