/** Numbers, bytes and times as people read them, in the reader's zone. Times of the server are seconds since 1970. */

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export const count = (n: number) => whole.format(n);
export const decimal = (n: number) => short.format(n);

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A measured value: up to five digits that count. */
export function measure(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e7)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n: number): string {
  let unit = 0;
  while (n >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${n >= 100 || unit === 0 ? Math.round(n) : Number(n.toPrecision(3))} ${UNITS[unit]}`;
}

/** 8s, 4m 10s, 3h 5m, 2d 4h. */
export function duration(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)}ms`;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return pair(s, 60, "m", 1, "s");
  if (s < 86400) return pair(s, 3600, "h", 60, "m");
  return pair(s, 86400, "d", 3600, "h");
}

function pair(s: number, large: number, one: string, small: number, other: string): string {
  const rest = Math.floor((s % large) / small);
  return `${Math.floor(s / large)}${one}${rest ? ` ${rest}${other}` : ""}`;
}

/** One unit: for columns of ages. */
export function age(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

export const timeOfDay = (time: number) => clock.format(time * 1000);
export const moment = (time: number) => full.format(time * 1000);

/** The time of day, with the day if it is another one. */
export function when(time: number, now = Date.now() / 1000): string {
  const then = new Date(time * 1000);
  return new Date(now * 1000).toDateString() === then.toDateString()
    ? timeOfDay(time)
    : `${day.format(then)}, ${timeOfDay(time)}`;
}
