#version 450
// SPDX-License-Identifier: Apache-2.0
layout(location = 0) in vec3 colour;
layout(location = 0) out vec4 result;

void main() {
  const vec2 away = gl_PointCoord * 2.0 - 1.0;
  const float light = max(0.0, 1.0 - dot(away, away));
  result = vec4(colour * light * light, 1.0);
}
