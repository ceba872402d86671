/** A line through points, or bars by name, as SVG. */

import { useLayoutEffect, useRef, useState } from "react";
import type { Json } from "../types";
import { revealed, Visible } from "../visible";

export interface Point {
  label: string;
  x: number;
  y: number;
}

const WIDTH = 560; // until it is known
const H = 200;
const LEFT = 52;
const BOTTOM = 24;
const LABEL = 40; // what a name below takes
const MOST = 500;

/** Return points of `[[x, y], …]`, `[{x, y}, …]`, `[{label, value}, …]` or `{label: value, …}`; else null. */
export function points(value: Json): Point[] | null {
  if (typeof value !== "object" || value === null) return null;
  const pairs: Json[][] = Array.isArray(value)
    ? value.map((each) =>
        Array.isArray(each) ? each : typeof each === "object" && each !== null ? Object.values(each) : [],
      )
    : Object.entries(value);
  const found = pairs.map(([first, second], at) => ({
    label: typeof first === "string" ? first : JSON.stringify(first ?? null),
    x: typeof first === "number" ? first : at,
    y: second,
  }));
  if (!found.length || !found.every((each) => typeof each.y === "number")) return null;
  return (found as Point[]).slice(0, MOST);
}

const short = (value: number) =>
  Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(1)
    : value.toLocaleString("en", { maximumFractionDigits: 2 });

export function Plot({ points }: { points: Point[] }) {
  const figure = useRef<HTMLElement>(null);
  const [W, setWidth] = useState(WIDTH);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => entry && setWidth(Math.max(200, entry.contentRect.width)));
    if (figure.current) watch.observe(figure.current);
    return () => watch.disconnect();
  }, []);
  const ys = points.map((point) => point.y);
  const xs = points.map((point) => point.x);
  const [low, high] = [Math.min(0, ...ys), Math.max(0, ...ys)];
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const share = (value: number, from: number, to: number) =>
    (value / 2 - from / 2) / (to / 2 - from / 2 || 1); // halves: no difference of two is infinite
  const isNamed = points.some((point) => point.label !== String(point.x));
  const step = (W - LEFT) / points.length;
  const each = Math.ceil((LABEL * points.length) / (W - LEFT)); // of so many names, one is shown
  const x = (point: Point, at: number) =>
    isNamed ? LEFT + step * (at + 0.5) : LEFT + share(point.x, first, last) * (W - LEFT - 8);
  const y = (value: number) => 8 + (1 - share(value, low, high)) * (H - BOTTOM - 16);
  return (
    <figure className="plot" ref={figure}>
      <svg viewBox={`0 0 ${W} ${H}`} role="img" aria-label={`Plot of ${points.length} values`}>
        {[low, low / 2 + high / 2, high].map((value) => (
          <g key={value}>
            <line className="grid" x1={LEFT} x2={W} y1={y(value)} y2={y(value)} />
            <text x={LEFT - 6} y={y(value) + 4} textAnchor="end">
              {short(value)}
            </text>
          </g>
        ))}
        {isNamed ? (
          points.map((point, at) => (
            <rect
              key={at}
              x={x(point, at) - step * 0.35}
              width={step * 0.7}
              y={Math.min(y(point.y), y(0))}
              height={Math.abs(y(point.y) - y(0))}
            />
          ))
        ) : (
          <polyline points={points.map((point, at) => `${x(point, at)},${y(point.y)}`).join(" ")} />
        )}
        {points.map(
          (point, at) =>
            at % each === 0 && (
              <text key={at} x={x(point, at)} y={H - 6} textAnchor="middle">
                {isNamed ? revealed(point.label).slice(0, Math.floor((step * each) / 8)) : short(point.x)}
              </text>
            ),
        )}
      </svg>
      <details>
        <summary>Values</summary>
        <table>
          <tbody>
            {points.map((point, at) => (
              <tr key={at}>
                <th scope="row">
                  <Visible text={point.label} />
                </th>
                <td className="number">{point.y}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}
