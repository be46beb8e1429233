#version 450
// SPDX-License-Identifier: Apache-2.0
// Adds the light of each point to the pixels around it.
layout(local_size_x = 64) in;
// A point: x and y from -1 to 1, its place in the palette from 0 to 1, its size in pixels.
layout(std430, binding = 0) readonly buffer Mesh { vec4 mesh[]; };
layout(std430, binding = 1) readonly buffer Particles { vec4 particles[]; };
layout(std430, binding = 2) readonly buffer Palette { uint colours[256]; };
layout(std430, binding = 3) buffer Pixels { uint light[]; };  // red, green and blue of each pixel, in 255ths
layout(constant_id = 0) const int width = 1;
layout(constant_id = 1) const int height = 1;

void main() {
  const uint i = gl_GlobalInvocationID.x, of_mesh = uint(mesh.length());
  if (i >= of_mesh + uint(particles.length())) return;
  const vec4 point = i < of_mesh ? mesh[i] : particles[i - of_mesh];
  const vec4 colour = unpackUnorm4x8(colours[uint(clamp(point.z, 0.0, 1.0) * 255.0)]);
  const vec2 middle = (point.xy * 0.5 + 0.5) * vec2(width, height);
  const ivec2 first = max(ivec2(floor(middle - point.w * 0.5)), ivec2(0));
  const ivec2 last = min(ivec2(floor(middle + point.w * 0.5)), ivec2(width, height) - 1);
  for (int y = first.y; y <= last.y; ++y)
    for (int x = first.x; x <= last.x; ++x) {
      const vec2 away = (vec2(x, y) + 0.5 - middle) * 2.0 / point.w;
      const float near = max(0.0, 1.0 - dot(away, away));
      const uvec3 added = uvec3(round(colour.rgb * colour.a * near * near * 255.0));
      for (int c = 0; c < 3; ++c) atomicAdd(light[(y * width + x) * 3 + c], added[c]);
    }
}
