/** Small drawings of one weight: 16 by 16, in the colour of the text. */

const DRAWINGS = {
  overview: "M2 2.5h5v5H2zM9 2.5h5v5H9zM2 9.5h5v4H2zM9 9.5h5v4H9z",
  jobs: "M2 4h12M2 8h12M2 12h8",
  queues: "M2 3h4v10H2zM7 5.5h3.5v5H7zM12 7h2v2h-2z",
  datasets:
    "M2.5 4c0-1.1 2.5-2 5.5-2s5.5.9 5.5 2-2.5 2-5.5 2-5.5-.9-5.5-2zM2.5 4v8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2V4M2.5 8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2",
  types: "M8 1.5l6 3.2v6.6l-6 3.2-6-3.2V4.7zM2 4.7l6 3.3 6-3.3M8 8v6.5",
  compare: "M2 13l4-6 3 3 5-8M2 8l3-3 4 5 5 1",
  new: "M8 3v10M3 8h10",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7L14 14",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1M11.900 11.900L13 13M3 13l1.1-1.1M11.900 4.1L13 3",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
  screen: "M2 3h12v8H2zM6 14h4M8 11v3",
  menu: "M2 4h12M2 8h12M2 12h12",
  out: "M6 2H3v12h3M10 5l3 3-3 3M13 8H6",
  help: "M5.5 6a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M8 12.5v.5",
  close: "M4 4l8 8M12 4l-8 8",
  down: "M8 2v9M4 7.5L8 11.5l4-4M3 14h10",
  chevron: "M6 4l4 4-4 4",
  up: "M8 13V3M4 7l4-4 4 4",
  check: "M3 8.5l3.5 3.5L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  pause: "M5.5 4v8M10.5 4v8",
  play: "M5 3l8 5-8 5z",
  stop: "M4 4h8v8H4z",
  again: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  trash: "M3 4h10M6 4V2.5h4V4M4.5 4l.5 9.5h6l.5-9.5",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.5l2 1.5",
  circle: "M8 13A5 5 0 1 0 8 3a5 5 0 0 0 0 10z",
  half: "M8 13A5 5 0 1 0 8 3a5 5 0 0 0 0 10zM8 3v10M8 6h2.5M8 8h5M8 10h2.5",
  back: "M7 4L3 8l4 4M3 8h10",
  no: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM4 4l8 8",
  disc: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12z",
  warning: "M8 2l6.5 11.5h-13zM8 6.5v3.5M8 11.5v.5",
  gpu: "M2 4h12v8H2zM5 6.5h2.5v3H5zM10 6.5h2M10 9.5h2M4 12v2M8 12v2M12 12v2",
} as const;

export type IconName = keyof typeof DRAWINGS;

export function Icon({ name, className }: { name: IconName; className?: string }) {
  return (
    <svg className={`icon ${className ?? ""}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path
        d={DRAWINGS[name]}
        fill="none"
        stroke="currentColor"
        strokeWidth="1.5"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </svg>
  );
}
