// Vectors: decoded, compared by their cosine, and projected to two dimensions by principal component analysis.

export function decodeFloats(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return new Float32Array(bytes.buffer); // little-endian, as on every device with a browser
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

export function similarities(rows) {
  const norms = rows.map((row) => Math.sqrt(dot(row, row)) || 1);
  return rows.map((a, i) => rows.map((b, j) => Math.min(1, Math.max(-1, dot(a, b) / (norms[i] * norms[j])))));
}

// The coordinates of the rows on their two principal components, and the share of the variance that these explain.
export function project(rows) {
  const mean = Array.from(rows[0], (_, k) => rows.reduce((sum, row) => sum + row[k], 0) / rows.length);
  const centered = rows.map((row) => Array.from(row, (value, k) => value - mean[k]));
  const { values, vectors } = eigen(centered.map((a) => centered.map((b) => dot(a, b))));
  const order = values.map((_, i) => i).sort((i, j) => values[j] - values[i]);
  const total = values.reduce((sum, value) => sum + Math.max(value, 0), 0) || 1;
  const axes = [0, 1].map((k) => {
    const index = order[k], scale = Math.sqrt(Math.max(values[index] ?? 0, 0));
    const coordinates = rows.map((_, i) => (index === undefined ? 0 : vectors[i][index] * scale));
    return { share: scale ** 2 / total, coordinates };
  });
  return { points: rows.map((_, i) => axes.map((axis) => axis.coordinates[i])), shares: axes.map((axis) => axis.share) };
}

// Eigenvalues and eigenvectors (columns) of a symmetric matrix, by Jacobi's rotations.
function eigen(matrix) {
  const size = matrix.length, a = matrix.map((row) => [...row]);
  const vectors = a.map((_, i) => a.map((__, j) => +(i === j)));
  const scale = Math.max(...a.flat().map(Math.abs)) || 1;
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        off = Math.max(off, Math.abs(a[p][q]));
        if (Math.abs(a[p][q]) > 1e-14 * scale) rotate(a, vectors, p, q);
      }
    }
    if (off <= 1e-13 * scale) break;
  }
  return { values: a.map((row, i) => row[i]), vectors };
}

function rotate(a, vectors, p, q) {
  const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1)), c = 1 / Math.hypot(t, 1), s = t * c;
  for (let k = 0; k < a.length; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
  for (let k = 0; k < a.length; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
  for (const row of vectors) [row[p], row[q]] = [c * row[p] - s * row[q], s * row[p] + c * row[q]];
}
