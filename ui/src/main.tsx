import { createRoot } from "react-dom/client";
import { App } from "./app";
import "./style/tokens.css";
import "./style/base.css";

createRoot(document.getElementById("root") as HTMLElement).render(<App />);
