/** A value that several components look at: `useSyncExternalStore(shared.listen, shared.read)`. */

export class Shared<T> {
  #listeners = new Set<() => void>();
  #value: T;

  constructor(value: T) {
    this.#value = value;
  }

  get now(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const told of [...this.#listeners]) told();
  }

  readonly read = (): T => this.#value;

  readonly listen = (told: () => void): (() => void) => {
    this.#listeners.add(told);
    return () => this.#listeners.delete(told);
  };
}
