#version 450
// SPDX-License-Identifier: Apache-2.0
layout(location = 0) in vec4 point;  // x, y, place in the palette from 0 to 1, size in pixels
layout(std430, set = 0, binding = 0) readonly buffer Palette { uint colours[256]; };
layout(location = 0) out vec3 colour;

void main() {
  gl_Position = vec4(point.xy, 0.0, 1.0);
  gl_PointSize = point.w;
  const vec4 found = unpackUnorm4x8(colours[uint(clamp(point.z, 0.0, 1.0) * 255.0)]);
  colour = found.rgb * found.a;
}
