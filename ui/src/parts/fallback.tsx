/** A view that breaks says so; the rest of the page goes on. */

import { Component, type ReactNode } from "react";
import { Empty } from "./empty";

export class Fallback extends Component<{ children: ReactNode }, { error: Error | undefined }> {
  override state = { error: undefined };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const error: Error | undefined = this.state.error;
    if (error === undefined) return this.props.children;
    return <Empty title="This view broke" says={(error as Error).message} command="weft status" />;
  }
}
