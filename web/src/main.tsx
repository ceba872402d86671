import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { keepToken } from "./api";
import { App } from "./app";
import "./styles.css";
import { useTheme } from "./theme";

keepToken();
useTheme.begin();
createRoot(document.getElementById("page")!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
