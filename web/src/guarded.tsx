/** A part of the page that cannot be shown does not take the others with it: it is shown otherwise. */

import { Component, type ReactNode } from "react";

interface Props {
  of: unknown; // what is shown: where it changes, it is tried again
  instead: ReactNode;
  children: ReactNode;
}

export class Guarded extends Component<Props, { failed: boolean }> {
  override state = { failed: false };

  static getDerivedStateFromError = () => ({ failed: true });

  override componentDidUpdate(before: Props): void {
    if (this.state.failed && before.of !== this.props.of) this.setState({ failed: false });
  }

  override render(): ReactNode {
    return this.state.failed ? this.props.instead : this.props.children;
  }
}
