import { bytes, count } from "../format";

/** A number of bytes, short; exact in the tooltip. */
export function Bytes({ n }: { n: number | null | undefined }) {
  if (n == null) return <span className="quiet">–</span>;
  return <span title={`${count(n)} bytes`}>{bytes(n)}</span>;
}
