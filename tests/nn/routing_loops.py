"""Routing procedures as loops over Python numbers, straight from their equations, for one image each."""

import math

import torch


def softmax(logits):
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def norm(vector):
    return math.sqrt(sum(x * x for x in vector))


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def squash(s):
    r = norm(s)
    return [r * r / (1 + r * r) * x / r for x in s]


def dynamic(u, *, iterations, bias=None, leaky=False):
    I, O, D = len(u), len(u[0]), len(u[0][0])
    b = [[0.0] * O for _ in range(I)]
    for _ in range(iterations):
        c = [softmax([*row, 0.0])[:O] if leaky else softmax(row) for row in b]
        v = []
        for j in range(O):
            s = [sum(c[i][j] * u[i][j][d] for i in range(I)) + (bias[j][d] if bias else 0.0) for d in range(D)]
            v.append(squash(s))
        for i in range(I):
            for j in range(O):
                b[i][j] += dot(u[i][j], v[j])
    return v, [norm(pose) for pose in v]


def em(V, a, beta_a, beta_u, *, iterations, inverse_temperature=0.01, variance_floor=5e-4):
    I, O, D = len(V), len(V[0]), len(V[0][0])
    R = [[1 / O] * O for _ in range(I)]
    for t in range(iterations):
        temperature = inverse_temperature * (1 - 0.95 ** (t + 1))
        mu, variance, active = [], [], []
        for j in range(O):
            r = [R[i][j] * a[i] for i in range(I)]
            mass = sum(r)
            mu.append([sum(r[i] * V[i][j][h] for i in range(I)) / mass for h in range(D)])
            variance.append(
                [sum(r[i] * (V[i][j][h] - mu[j][h]) ** 2 for i in range(I)) / mass + variance_floor for h in range(D)]
            )
            cost = sum((beta_u[j] + math.log(math.sqrt(variance[j][h]))) * mass for h in range(D))
            active.append(1 / (1 + math.exp(-temperature * (beta_a[j] - cost))))
        for i in range(I):
            p = []
            for j in range(O):
                exponent = -sum((V[i][j][h] - mu[j][h]) ** 2 / (2 * variance[j][h]) for h in range(D))
                p.append(math.exp(exponent) / math.sqrt(math.prod(2 * math.pi * variance[j][h] for h in range(D))))
            total = sum(active[j] * p[j] for j in range(O))
            R[i] = [active[j] * p[j] / total for j in range(O)]
    return mu, active


def attention(u, weight):
    I, O, D = len(u), len(u[0]), len(u[0][0])
    poses = []
    for j in range(O):
        logits = [sum(u[i][j][d] * weight[j][i][d][n] for i in range(I) for d in range(D)) for n in range(I)]
        c = softmax(logits)
        poses.append([sum(c[n] * u[n][j][d] for n in range(I)) for d in range(D)])
    return poses, [norm(pose) for pose in poses]


def weighted_mean(u, r, a, j):
    weights = [r[i][j] * a[i] for i in range(len(u))]
    return [sum(w * u[i][j][d] for i, w in enumerate(weights)) / sum(weights) for d in range(len(u[0][0]))]


def frms(u, a, *, iterations, step=1.0):
    I, O = len(u), len(u[0])
    b = [[0.0] * O for _ in range(I)]
    for _ in range(iterations):
        r = [softmax(row) for row in b]
        v = [squash(weighted_mean(u, r, a, j)) for j in range(O)]
        for i in range(I):
            for j in range(O):
                away = [x - y for x, y in zip(squash(u[i][j]), v[j], strict=True)]
                b[i][j] += step * (1 - dot(away, away))
    return v, [norm(pose) for pose in v]


def frem(u, a, *, iterations, bandwidth=2.0):
    I, O = len(u), len(u[0])
    r = [[1 / O] * O for _ in range(I)]
    for _ in range(iterations):
        v = [squash(weighted_mean(u, r, a, j)) for j in range(O)]
        pi = [sum(r[i][j] * a[i] for i in range(I)) / sum(a) for j in range(O)]
        for i in range(I):
            k = []
            for j in range(O):
                away = [x - y for x, y in zip(squash(u[i][j]), v[j], strict=True)]
                k.append(pi[j] * (1 - dot(away, away) / bandwidth**2))
            r[i] = [value / sum(k) for value in k]
    return v, [norm(pose) for pose in v]


def digamma(x):
    return torch.digamma(torch.tensor(x, dtype=torch.float64)).item()


def variational(V, a, beta_a, beta_u, *, iterations, alpha0=1.0, kappa0=1.0, psi0=1.0, nu0=None):
    """In the form of the paper, with the votes' own mean and their scatter around it."""
    I, O, D = len(V), len(V[0]), len(V[0][0])
    nu0 = D + 1 if nu0 is None else nu0
    R = [[1 / O] * O for _ in range(I)]
    for _ in range(iterations):
        r = [[R[i][j] * a[i] for j in range(O)] for i in range(I)]
        mass = [sum(r[i][j] for i in range(I)) for j in range(O)]
        alphas = [alpha0 + mass[j] for j in range(O)]
        m, inverse_psi, log_pi, log_lambda = [], [], [], []
        for j in range(O):
            kappa, nu = kappa0 + mass[j], nu0 + mass[j]
            mean = [sum(r[i][j] * V[i][j][d] for i in range(I)) / mass[j] for d in range(D)]
            m.append([mass[j] * mean[d] / kappa for d in range(D)])
            scatter = [sum(r[i][j] * (V[i][j][d] - mean[d]) ** 2 for i in range(I)) for d in range(D)]
            inverse_psi.append([1 / psi0 + scatter[d] + kappa0 * mass[j] / kappa * mean[d] ** 2 for d in range(D)])
            log_pi.append(digamma(alphas[j]) - digamma(sum(alphas)))
            determinant = -sum(math.log(x) for x in inverse_psi[j])
            log_lambda.append(sum(digamma((nu - d) / 2) for d in range(D)) + D * math.log(2) + determinant)
        for i in range(I):
            log_p = []
            for j in range(O):
                kappa, nu = kappa0 + mass[j], nu0 + mass[j]
                distance = D / kappa + nu * sum((V[i][j][d] - m[j][d]) ** 2 / inverse_psi[j][d] for d in range(D))
                log_p.append(log_pi[j] + log_lambda[j] / 2 - D / 2 * math.log(2 * math.pi) - distance / 2)
            R[i] = softmax(log_p)
    active = []
    for j in range(O):
        entropy = D / 2 * math.log(2 * math.pi * math.e) - log_lambda[j] / 2
        logit = beta_a[j] - (math.exp(log_pi[j]) * entropy + beta_u[j])
        active.append(1 / (1 + math.exp(-logit)))
    return m, active


def layer_norm(x, scale, shift):
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [s * (v - mean) / math.sqrt(variance + 1e-5) + t for v, s, t in zip(x, scale, shift, strict=True)]


def inverted_dot_product(V, scale, shift, *, iterations, parents=None):
    I, O, D = len(V), len(V[0]), len(V[0][0])
    p = parents
    for _ in range(iterations):
        if p is None:
            r = [[1 / O] * O for _ in range(I)]
        else:
            r = [softmax([dot(p[j], V[i][j]) / math.sqrt(D) for j in range(O)]) for i in range(I)]
        p = [
            layer_norm([sum(r[i][j] * V[i][j][d] for i in range(I)) for d in range(D)], scale, shift) for j in range(O)
        ]
    return p, [norm(pose) for pose in p]


def self_attention(u, prior=None):
    I, O, D = len(u), len(u[0]), len(u[0][0])
    A = [[sum(dot(u[i][j], u[k][j]) for k in range(I)) / math.sqrt(D) for j in range(O)] for i in range(I)]
    poses = []
    for j in range(O):
        c = [softmax(A[i])[j] + (prior[i][j] if prior else 0.0) for i in range(I)]
        s = [sum(c[i] * u[i][j][d] for i in range(I)) for d in range(D)]
        poses.append([(1 - math.exp(-norm(s))) * x / norm(s) for x in s])
    return poses, [norm(pose) for pose in poses]
